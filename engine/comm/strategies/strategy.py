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

CLOSING = 60.0  # seconds that the end of a run waits for other ranks


@dataclass(frozen=True)
class Step:
    """One update.

    iteration: updates finished before it. rate: the learning rate. iter_size: micro-batches whose gradients have been
    added up. clip: largest L2 norm of the gradients (summed over micro-batches, averaged over ranks); 0 or less: no
    limit. momentum_correction: the history is multiplied by it first: rate / rate of the step before (1: option off).
    """

    iteration: int
    rate: float
    iter_size: int = 1
    clip: float = 0.0
    momentum_correction: float = 1.0


class Event(NamedTuple):
    """A bucket in one step; times in nanoseconds of CLOCK_MONOTONIC. The update runs from `reduced` to `end`; where it
    is sharded, weights are exchanged then."""

    step: int
    bucket: int
    server: int
    ready: int
    start: int
    reduced: int
    end: int


class Chunk(NamedTuple):
    """What is reduced at a time: floats [begin, end) of the arena; residual: rounding errors fed back, or None."""

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

    after which the next forward waits, bucket by bucket, for what is in flight. Raises CommError where ranks fail.
    """

    # Whether a program reads the reduced gradients: an update that does not need them in the arena may leave them out.
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
        """Collective; all ranks make the one that strategy_of() chooses. queue, updater: of these buckets. gradients:
        the whole arena, float32. threads: of this rank's solver. sharded: where each of several ranks updates its
        shares only, the updater's ranges are these. state: the arenas of weights and optimizer state, which ranks
        average in mode LOCAL. residual: with error feedback, what rounding has taken from gradients so far, if
        anything."""
        self.world, self.queue, self.updater = world, queue, updater
        self.buckets = list(buckets)
        self.gradients = gradients
        self.settings, self.threads, self.sharded = settings, threads, sharded
        # Of exact sums, for what ranks measure of their shares and, in mode ASYNC, for the weights where they meet.
        self.plain_channel = world.channel() if sharded else None
        feedback = settings.reduction.error_feedback and world.size > 1
        if feedback and residual is None:
            residual = np.zeros_like(gradients)
        self.residual = residual if feedback else None  # for the next step
        self.local, self.state = settings.local if world.size > 1 else None, list(state)
        self.ranks = world.size  # whose gradients are in an update: of local ones, this one's alone
        self.averages = False  # at the end of the step, over the ranks
        self.apart = False  # ranks have updated by themselves since they last averaged
        self.clip = 0.0
        self.needs_norms = False  # of all gradients before the first update

    def start(self, step: Step) -> None:
        """Opens the step; returns before anything is reduced."""
        self.wait_all()
        is_local = self.local is not None and self.local.is_local(step.iteration)
        self.ranks = 1 if is_local else self.world.size
        self.averages = self.local is not None and self.local.averages(step.iteration)
        self.apart = is_local and not self.averages
        # The one place that averages: over ranks and micro-batches. (The losses have averaged over the batch.)
        scale = 1.0 / (self.ranks * step.iter_size)
        self.updater.set_step(step.rate, scale, step.iteration, step.momentum_correction)
        self.clip = step.clip
        self.needs_norms = step.clip > 0 or self.updater.has_local_rates
        self.queue.begin_step(step.iteration)

    def backward_done(self) -> None:
        """Every bucket has been marked ready; strategies without servers do their work here."""
        missing = self.queue.missing()
        if missing:
            names = ", ".join(self.buckets[index].name for index in missing[:3])
            raise CommError(f"backward ended without the gradients of {len(missing)} buckets ({names})")

    def wait_all(self) -> None:
        """Returns when every update is in the weights; called before a test, a snapshot, the end."""
        self.world.board.enter(UPDATE)
        self.queue.wait_all_done()

    def meets(self, iteration: int) -> bool:
        """Whether the ranks wait for each other in it."""
        return self.local is None or not self.local.is_local(iteration) or self.local.averages(iteration)

    def settle(self) -> None:
        """Collective. Every update is in the weights, and these and the optimizer's state are the same on all ranks."""
        self.wait_all()
        if self.apart:
            for array in self.state:
                self.world.allreduce(array)
                array /= self.world.size
        self.apart = False

    def abandon(self, reason: str) -> None:
        """Gives the open step up, of which nothing is in the weights yet. With several ranks it is the end of training:
        others may have gone on. The waiters of this one, and who tries another step, are told the reason."""
        self.queue.fail(reason)

    def start_over(self) -> None:
        """When every update is in the weights: these are to be others, the same on all ranks, and steps may come
        again."""
        self.queue.abandon()
        self.apart = False
        if self.residual is not None:
            self.residual[:] = 0

    def forsake(self) -> None:
        """After ranks were lost: nothing of this strategy goes on, and nothing is given back. Raises CommError."""
        self.abandon("a rank has died")

    def close(self) -> None:
        """Ends what the strategy started. The last step is finished first, unless it has failed. Raises CommError where
        that takes longer than CLOSING."""
        if not self.queue.stopped and not self.queue.wait_all_done(CLOSING):
            raise CommError(
                f"the last updates have not come for {CLOSING:g} s: other ranks have not sent their gradients"
            )
        self.queue.close()

    def record(self, on: bool) -> None:
        """Keep events for the timeline from now on, or stop."""
        self.queue.record(on)

    def events(self) -> list[Event]:
        """What was recorded since the last call."""
        return [Event(*event) for event in self.queue.take_events()]

    def waited_ns(self) -> int:
        """Exposed communication so far: for how long the solver's thread has waited for reduced gradients."""
        return self.queue.waited_ns()

    @property
    def server_count(self) -> int:
        """Threads that reduce and update while backward runs."""
        return 0

    def describe(self) -> str:
        """One line for the log."""
        raise NotImplementedError

    def describe_buckets(self) -> str:
        largest, chunk = max((bucket.nbytes for bucket in self.buckets), default=0), self.settings.chunk_bytes
        chunks = f" in chunks of {chunk / 1e6:.3g} MB" if largest > chunk else ""
        text = f"{len(self.buckets)} buckets of up to {largest / 1e6:.3g} MB{chunks}, {self.settings.reduction}"
        text += f", each rank updates 1/{self.sharded.shares.ranks}" if self.sharded else ""
        if self.local is None:
            return text
        begin = f" from iteration {self.local.start} on" if self.local.start else ""
        return f"{text}, weights averaged every {self.local.every} iterations{begin}"

    def chunks(self, bucket: Bucket) -> list[Chunk]:
        found = []
        for begin, end in chunk_bounds(bucket, self.settings.chunk_bytes):
            residual = None if self.residual is None else self.residual[begin:end]
            found.append(Chunk(begin, end, self.gradients[begin:end], residual))
        return found

    def make_channels(self) -> dict[int, Channel]:
        """Collective. By the parts of buckets: among all ranks, among those that hold the same part; none where every
        rank has a part of its own."""
        size, reduction = self.world.size, self.settings.reduction
        kinds = sorted({1, *(bucket.parts for bucket in self.buckets)})
        return {parts: Channel() if parts == size > 1 else self.world.channel(reduction, parts) for parts in kinds}

    def reduce(self, chunk: Chunk, channel: Channel) -> None:
        """The sums over the ranks in place of the gradients; with sharded updates those of this rank's share."""
        reduce = channel.reduce_scatter if self.sharded else channel.allreduce
        reduce(chunk.gradients, chunk.residual)

    def update_share(self, index: int, chunk: Chunk, channel: Channel) -> np.ndarray | None:
        """With sharded updates, reduces a chunk of bucket `index` and updates this rank's share, in one pass over what
        has come. Returns what pass_on() sends."""
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
        """With sharded updates: the new weights of this rank's share of a chunk to all ranks, and theirs into the
        arena. mine: those of a share that travels rounded."""
        assert self.sharded
        channel.all_gather(self.sharded.weights[chunk.begin : chunk.end], mine)
        if self.keep_gradients:
            channel.all_gather(chunk.gradients)

    def average(self, chunk: Chunk, channel: Channel) -> None:
        """After a local update of a chunk: where the step ends with it, the ranks' average of weights and state."""
        for array in self.state if self.averages else ():
            values = array[chunk.begin : chunk.end]
            channel.allreduce(values)
            values /= self.world.size

    def clip_factor(self, sum_of_squares: float) -> float:
        """clip / norm if the norm is larger, else 1. sum_of_squares: of all gradients, after the reduction."""
        norm = float(np.sqrt(sum_of_squares)) / self.ranks
        return self.clip / norm if norm > self.clip else 1.0

    def use_norms(self, sums_of_squares: Sequence[float]) -> None:
        """Clips and sets layer-wise rates, whichever are asked for. sums_of_squares: measured, of every bucket. With
        sharded updates it is collective."""
        figures = np.array([sum(sums_of_squares), *self.updater.squares()])
        if self.plain_channel:
            self.plain_channel.allreduce(figures)
        if self.clip > 0:
            self.updater.set_clip_factor(self.clip_factor(float(figures[0])))
        self.updater.set_local_rates(figures[1:].tolist())

    def apply_all(self, threads: int) -> None:
        """Updates every bucket, with a team of threads; all are reduced by now."""
        if self.needs_norms:
            self.use_norms([self.updater.measure(bucket.index, threads) for bucket in self.buckets])
        for bucket in self.buckets:
            self.updater.apply(bucket.index, threads)
            self.queue.done(bucket.index)
