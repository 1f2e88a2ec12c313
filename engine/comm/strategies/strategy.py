"""The interface of communication strategies, which reduce the gradients of a step and apply the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.comm.buckets import Bucket, chunk_bounds
from engine.comm.settings import CommSettings
from engine.comm.shares import ShardedWeights
from engine.comm.world import Channel, World
from engine.errors import CommError
from engine.watchdog.board import UPDATE

if TYPE_CHECKING:
    from engine.host._core import ReadyQueue, Updater

CLOSING = 60.0  # how many seconds the end of a run waits for other ranks


@dataclass(frozen=True)
class Step:
    """The numbers of one update.

    iteration: updates finished before it. rate: the learning rate. iter_size: micro-batches whose gradients have been
    added up. clip: largest L2 norm of the gradients (summed over micro-batches, averaged over ranks); 0 or less: no
    limit. momentum_correction: what the history is multiplied by first, rate / rate of the step before; 1: nothing.
    """

    iteration: int
    rate: float
    iter_size: int = 1
    clip: float = 0.0
    momentum_correction: float = 1.0


class Event(NamedTuple):
    """What happened to a bucket in one step; times in nanoseconds of CLOCK_MONOTONIC. The update runs from `reduced` to
    `end`; if it is sharded, this includes the exchange of weights."""

    step: int
    bucket: int
    server: int
    ready: int
    start: int
    reduced: int
    end: int


class Chunk(NamedTuple):
    """What is reduced at a time: floats [begin, end) of the arena. residual: with error feedback, what rounding has
    taken from these gradients so far; else None."""

    begin: int
    end: int
    gradients: np.ndarray
    residual: np.ndarray | None


class Strategy:
    """Reduces the gradients of a step over the ranks and applies the update. A step of the solver is

        forward, backward of every micro-batch but the last; forward of the last
        start(step)                  before the last backward, in which the executor marks buckets ready
        backward of the last
        backward_done()

    after which the next forward waits, bucket by bucket, for the updates that are under way. Methods raise CommError
    if a rank fails.
    """

    # Whether somebody reads the reduced gradients. If not, an update need not write them to the arena.
    keep_gradients = False

    def __init__(
        self,
        world: World,
        queue: ReadyQueue,
        updater: Updater,
        buckets: Sequence[Bucket],
        gradients: np.ndarray,
        settings: CommSettings,
        *,
        threads: int = 1,
        sharded: ShardedWeights | None = None,
        state: Sequence[np.ndarray] = (),
        residual: np.ndarray | None = None,
    ):
        """Collective: all ranks make the strategy that strategy_of() chooses.

        Args:
            queue, updater: of these buckets.
            gradients: the whole arena, float32.
            threads: how many compute threads this rank's solver has.
            sharded: given if each rank updates its shares alone; the updater's ranges are these shares.
            state: the arenas of weights and optimizer state, which ranks average in mode LOCAL.
            residual: with error feedback, what rounding has taken from gradients so far; None: nothing.
        """
        self.world, self.queue, self.updater = world, queue, updater
        self.buckets = list(buckets)
        self.gradients = gradients
        self.settings, self.threads, self.sharded = settings, threads, sharded
        # A channel without rounding: for the norms of shares and, in mode ASYNC, for the weights at a meeting.
        self.plain_channel = world.channel() if sharded else None
        feedback = settings.reduction.error_feedback and world.size > 1
        if feedback and residual is None:
            residual = np.zeros_like(gradients)
        self.residual = residual if feedback else None
        self.local, self.state = settings.local if world.size > 1 else None, list(state)
        self.ranks = world.size  # how many ranks' gradients are in an update: 1 while ranks update by themselves
        self.averages = False  # whether this step ends with the ranks' average
        self.apart = False  # whether ranks have updated by themselves since they last averaged
        self.clip = 0.0
        self.needs_norms = False  # whether the first update needs the norms of all gradients

    def start(self, step: Step) -> None:
        """Opens the step. Returns before anything is reduced."""
        self.wait_all()
        is_local = self.local is not None and self.local.is_local(step.iteration)
        self.ranks = 1 if is_local else self.world.size
        self.averages = self.local is not None and self.local.averages(step.iteration)
        self.apart = is_local and not self.averages
        # The one place that averages gradients, over ranks and micro-batches. (Losses have averaged over the batch.)
        scale = 1.0 / (self.ranks * step.iter_size)
        self.updater.set_step(step.rate, scale, step.iteration, step.momentum_correction)
        self.clip = step.clip
        self.needs_norms = step.clip > 0 or self.updater.has_local_rates
        self.queue.begin_step(step.iteration)

    def backward_done(self) -> None:
        """Checks, after backward, that every bucket was marked ready. Strategies without servers reduce and update
        here. Raises CommError if gradients are missing."""
        missing = self.queue.missing()
        if missing:
            names = ", ".join(self.buckets[index].name for index in missing[:3])
            raise CommError(f"backward ended without the gradients of {len(missing)} buckets ({names})")

    def wait_all(self) -> None:
        """Returns when every update is in the weights. Called before a test, a snapshot, the end."""
        self.world.board.enter(UPDATE)
        self.queue.wait_all_done()

    def meets(self, iteration: int) -> bool:
        """Tells whether the ranks wait for each other in an iteration."""
        return self.local is None or not self.local.is_local(iteration) or self.local.averages(iteration)

    def settle(self) -> None:
        """Collective. Waits as wait_all() does, and makes weights and optimizer state the same on all ranks: their
        average, if ranks have updated by themselves."""
        self.wait_all()
        if self.apart:
            for array in self.state:
                self.world.allreduce(array)
                array /= self.world.size
        self.apart = False

    def abandon(self, reason: str) -> None:
        """Gives up the open step. With several ranks this ends training, as the others may have gone on: all waits on
        this rank, and further steps, raise an error with the reason."""
        self.queue.fail(reason)

    def start_over(self) -> None:
        """Prepares for other weights, the same on all ranks, when every update is in the present ones. Steps that were
        made before may come again."""
        self.queue.abandon()
        self.apart = False
        if self.residual is not None:
            self.residual[:] = 0

    def stop_after_loss(self) -> None:
        """Gives up the open step after ranks have died. Returns when no thread of this strategy works any more; its
        channels are not closed. Raises CommError if servers do not end."""
        self.abandon("a rank has died")

    def close(self) -> None:
        """Finishes the last step, unless it has failed, and ends what the strategy started. Raises CommError if that
        takes longer than CLOSING."""
        if not self.queue.stopped and not self.queue.wait_all_done(CLOSING):
            raise CommError(
                f"the last updates have not come for {CLOSING:g} s: other ranks have not sent their gradients"
            )
        self.queue.close()

    def record(self, on: bool) -> None:
        """Begins to record events for the timeline, or stops it."""
        self.queue.record(on)

    def events(self) -> list[Event]:
        """Returns the events that were recorded since the last call."""
        return [Event(*event) for event in self.queue.take_events()]

    def waited_ns(self) -> int:
        """Returns the exposed communication so far: nanoseconds that the solver's thread has waited for gradients."""
        return self.queue.waited_ns()

    @property
    def server_count(self) -> int:
        """The number of threads that reduce and update while backward runs."""
        return 0

    def describe(self) -> str:
        """Returns the log's line on how gradients are reduced."""
        raise NotImplementedError

    def describe_buckets(self) -> str:
        """Returns what describe() says of buckets, rounding, shares and averages."""
        largest, chunk = max((bucket.nbytes for bucket in self.buckets), default=0), self.settings.chunk_bytes
        chunks = f" in chunks of {chunk / 1e6:.3g} MB" if largest > chunk else ""
        text = f"{len(self.buckets)} buckets of up to {largest / 1e6:.3g} MB{chunks}, {self.settings.reduction}"
        text += f", each rank updates 1/{self.sharded.shares.ranks}" if self.sharded else ""
        if self.local is None:
            return text
        begin = f" from iteration {self.local.start} on" if self.local.start else ""
        return f"{text}, weights averaged every {self.local.every} iterations{begin}"

    def chunks(self, bucket: Bucket) -> list[Chunk]:
        """Returns the chunks of a bucket, in the order of the arena."""
        found = []
        for begin, end in chunk_bounds(bucket, self.settings.chunk_bytes):
            residual = None if self.residual is None else self.residual[begin:end]
            found.append(Chunk(begin, end, self.gradients[begin:end], residual))
        return found

    def make_channels(self) -> dict[int, Channel]:
        """Collective. Makes a channel for each number of parts that buckets have, among the ranks that hold the same
        part. Returns them by that number; 1 is the channel of all ranks. If every rank holds a part of its own, there
        is nothing to sum, and the channel is an empty one."""
        size, reduction = self.world.size, self.settings.reduction
        kinds = sorted({1, *(bucket.parts for bucket in self.buckets)})
        return {parts: Channel() if parts == size > 1 else self.world.channel(reduction, parts) for parts in kinds}

    def reduce(self, chunk: Chunk, channel: Channel) -> None:
        """Replaces the gradients of a chunk by their sums over the ranks; with sharded updates those of this rank's
        share alone."""
        reduce = channel.reduce_scatter if self.sharded else channel.allreduce
        reduce(chunk.gradients, chunk.residual)

    def update_share(self, index: int, chunk: Chunk, channel: Channel) -> np.ndarray | None:
        """Reduces a chunk of bucket `index` and updates this rank's share of it, in one pass. For sharded updates.
        Returns what pass_on() takes as `mine`."""
        assert self.sharded
        share = self.sharded.shares.of_chunk(chunk.begin)
        found = channel.scatter(chunk.gradients, chunk.residual)
        self.world.board.server_beat()
        if found is None:
            self.updater.apply_range(index, share.begin, share.end)
            return self.sharded.of_chunk(chunk.begin)
        self.updater.apply_rows(index, share.begin, share.end, *found, self.keep_gradients)
        return found.packed

    def pass_on(self, chunk: Chunk, channel: Channel, mine: np.ndarray | None) -> None:
        """Sends the new weights of this rank's share of a chunk to all ranks, and receives theirs into the arena. For
        sharded updates.

        mine: the new weights if they travel as bfloat16, see Channel.all_gather(); None: they are in the arena."""
        assert self.sharded
        channel.all_gather(self.sharded.weights[chunk.begin : chunk.end], mine)
        if self.keep_gradients:
            channel.all_gather(chunk.gradients)

    def average(self, chunk: Chunk, channel: Channel) -> None:
        """Averages weights and state of a chunk over the ranks, after its update, if the step ends with an average."""
        for array in self.state if self.averages else ():
            values = array[chunk.begin : chunk.end]
            channel.allreduce(values)
            values /= self.world.size

    def clip_factor(self, sum_of_squares: float) -> float:
        """Returns clip / norm if the norm is larger than clip, else 1. sum_of_squares: of all reduced gradients."""
        norm = float(np.sqrt(sum_of_squares)) / self.ranks
        return self.clip / norm if norm > self.clip else 1.0

    def use_norms(self, sums_of_squares: Sequence[float]) -> None:
        """Gives the updater the factor of clipping and the layer-wise rates, as far as they are asked for. Collective
        with sharded updates. sums_of_squares: of every bucket, as Updater.measure() returned them."""
        figures = np.array([sum(sums_of_squares), *self.updater.squares()])
        if self.plain_channel:
            self.plain_channel.allreduce(figures)
        if self.clip > 0:
            self.updater.set_clip_factor(self.clip_factor(float(figures[0])))
        self.updater.set_local_rates(figures[1:].tolist())

    def apply_all(self, threads: int) -> None:
        """Updates every bucket with a team of threads, when all are reduced."""
        if self.needs_norms:
            self.use_norms([self.updater.measure(bucket.index, threads) for bucket in self.buckets])
        for bucket in self.buckets:
            self.updater.apply(bucket.index, threads)
            self.queue.done(bucket.index)
