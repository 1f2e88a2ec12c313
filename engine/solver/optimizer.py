"""The Optimizer: what a step does to parameters. The training loop, Caffe's interface and `engine time` all use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.comm.buckets import Bucket, buckets_of
from engine.comm.factory import settings_of, strategy_of
from engine.comm.settings import CommSettings
from engine.comm.strategies.asynchronous import Asynchronous
from engine.comm.strategies.strategy import Event, Step, Strategy
from engine.comm.world import World
from engine.host.interrupts import undisturbed
from engine.net import Net
from engine.net.gates import gates
from engine.report.observer import ValuesRecord
from engine.solver.history import History
from engine.solver.schedules import BatchGrowth, LearningRate, Momentum, WeightDecay
from engine.solver.sharding import Sharding
from engine.solver.state import PlateauState, TrainingState
from engine.solver.update import buckets_for, local_ratio, make_updater, rule_of

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import Channel
    from engine.host._core import Updater
    from engine.solver.ema import WeightAverage
    from engine.watchdog.board import Board


class Optimizer:
    """History, buckets, update rule, and the strategy that reduces gradients while backward runs.

        optimizer = Optimizer(net, solver_param, world())
        optimizer.wait()                      # nothing may still read the gradients
        net.program.zero_gradients()
        with optimizer.update(state, samples):
            net.program.backward()            # its buckets are reduced and applied meanwhile

    Updates may still be under way then. The next forward waits for them, parameter by parameter; anybody else who looks
    at weights must call wait() before.

    Attributes:
        weights, gradients: float32 views of the net's arenas.
    """

    def __init__(
        self,
        net: Net,
        param: proto.SolverParameter,
        world: World,
        *,
        where: str | None = None,
        sources: Sequence[str] = (),
        number: int = 0,
    ):
        """Collective.

        Args:
            param: the solver, which counts in iterations by now (resolve()).
            where: the place of its lr_policy, for errors.
            sources: names of the net's data sources, for the watchdog.
            number: of the net, as for Board.net().

        Raises ConfigError for unknown policies or update rules, CommError if ranks disagree about buckets.
        """
        from engine.host import _core

        self.net, self.param, self.world = net, param, world
        self.rate, self.weight_decay = LearningRate(param, where), WeightDecay(param, where)
        self.momentum = Momentum(param, where)
        self.growth = BatchGrowth(param)
        self.iter_size = self.micro_batches(0)  # micro-batches of the last update
        self._sources, self._number = sources, number
        settings = settings_of(world, param.comm_param)
        self.buckets: list[Bucket] = buckets_for(net, settings)
        shards = world.size > 1 and (settings.shard_updates or settings.max_staleness is not None)
        self.sharding = Sharding(net, world, self.buckets, settings) if shards else None
        self.history = History(net, rule_of(param).histories, self.sharding)
        self.gradients = np.asarray(net.gradients, np.float32)[: net.arena_size]
        self.weights = np.asarray(net.weights, np.float32)[: net.arena_size]
        self._decay, self._momentum = self.weight_decay(0), param.momentum
        self.rate_share = 1.0  # the fraction of the rate that is used: below 1 where deaths have shrunk the batch
        self.threads = _core.threads()
        self.strategy = self._make_strategy(settings)
        self._asynchronous = self.strategy if isinstance(self.strategy, Asynchronous) else None
        if self._asynchronous:
            self._asynchronous.step_of = self._step_of
        # Sums between ops, on the main thread, need a channel of their own beside those of the servers.
        self._sync_channel = world.channel() if net.synchronised else None
        self.attach(net)

    def _make_strategy(self, settings: CommSettings, residual: np.ndarray | None = None) -> Strategy:
        """Collective. Makes the strategy, with an updater and a ready queue for self.buckets.

        residual: what the strategy before it has left over from rounding gradients, if there was one."""
        from engine.host import _core

        sharded = self.sharding.weights if self.sharding else None
        masters = self.weights if sharded is None or sharded.masters is None else sharded.masters
        gradients = self.gradients if sharded is None or sharded.sums is None else sharded.sums
        arrays = masters, gradients, self.history.arrays
        updater = make_updater(self.param, self.net, self.buckets, *arrays, self._decay, self._momentum, sharded)
        self.queue = _core.ReadyQueue(len(self.buckets))
        chosen = strategy_of(self.world, settings, self.buckets)
        return chosen(
            self.world,
            self.queue,
            updater,
            self.buckets,
            self.gradients,
            settings,
            threads=self.threads,
            sharded=sharded,
            state=[self.weights, *self.history.arrays],
            residual=residual,
        )

    def communicate(self, settings: CommSettings) -> None:
        """Collective, between two updates. Reduces gradients in another way from now on. Updates must not be
        sharded."""
        assert self.sharding is None
        before = self.strategy
        before.settle()
        before.close()
        self.buckets = buckets_for(self.net, settings)
        self.strategy = self._make_strategy(settings, before.residual)
        self.strategy.keep_gradients = before.keep_gradients
        self.attach(self.net)

    def stop_after_loss(self) -> None:
        """Gives up the updates under way, after World.revoke(). Returns when nothing touches the arenas any more."""
        self.strategy.stop_after_loss()

    def rejoin(self) -> None:
        """Collective, after World.shrink(). Makes the ranks that are left reduce gradients, in the same buckets."""
        before = self.strategy
        self.strategy = self._make_strategy(before.settings)
        self.strategy.keep_gradients = before.keep_gradients
        if self._sync_channel is not None:
            self._sync_channel = self.world.channel()
        self.attach(self.net)

    def attach(self, net: Net) -> None:
        """Connects a net's program to the ready queue, to the watchdog's board, and to the sums over ranks that
        synchronised BatchNorm takes.

        net: the one that this was made for, or the same in other shapes, with the same parameters."""
        self.net = net
        net.program.set_queue(self.queue, gates(net, buckets_of(self.buckets)))
        net.set_board(self.world.board, self._number, self._sources, [bucket.name for bucket in self.buckets])
        if self._sync_channel is not None:
            # Not a method of this optimizer: the program would hold the optimizer, which holds the program's net, and
            # Python does not find cycles through C++, so that neither would ever be freed.
            net.program.set_ranks(self.world.size, partial(_add_up, self.world.board, self._sync_channel))

    def begin_with_weights(self) -> None:
        """Makes training begin with the net's weights, after they were read from a file."""
        if self.sharding:
            self.sharding.begun = False

    def take_over_weights(self) -> None:
        """Goes on from the net's weights, of which somebody may have set some. They are the same on all ranks."""
        if self.sharding:
            self.sharding.take_over()

    def keep_gradients(self) -> None:
        """Makes updates from now on leave the reduced gradients in the arena, for those who look at them."""
        self.strategy.keep_gradients = True

    # The step

    @contextmanager
    def update(self, state: TrainingState, samples: int, average: WeightAverage | None = None) -> Iterator[float]:
        """Wraps the backward pass that completes an iteration's gradients, and updates by them. Yields the rate.

        At its end `state` advances by an iteration of `samples` samples over all ranks, and `average`, if given, by a
        step. An error inside leaves the iteration out where there is one rank. With several it ends the servers' wait
        for gradients that will not come, and training cannot go on.
        """
        try:
            yield self.begin(state)
            # With several ranks this one may wait for the others here, and must stay interruptible: the run ends then.
            with undisturbed() if self.world.size == 1 else nullcontext():
                self.finish()
                state.advance(samples)
                if average:
                    average.step(state.iteration - 1)
                    if average.is_rescaled:
                        self.wait()
                        average.catch_up()
        except BaseException as error:
            self.abandon(f"iteration {state.iteration} has failed: {str(error) or type(error).__name__}")
            raise

    def abandon(self, reason: str) -> None:
        """Ends, after an error, all waiting for updates that are not in the weights yet. reason: the error, for those
        who call next. A single rank may go on with its next iteration, several ranks may not."""
        self.strategy.abandon(reason)

    def begin(self, state: TrainingState) -> float:
        """Collective. Opens the step with the rate and momentum of this iteration; returns the rate."""
        loss = state.mean_loss(self.world) if self.rate.reads_loss else None
        rate = self.rate(state.iteration, loss, state.plateau) * self.rate_share
        correction = 1.0
        if self.param.momentum_correction and state.last_rate:
            correction = rate / state.last_rate
        state.last_rate = rate
        self.iter_size = self.micro_batches(state.iteration)
        # As in Caffe this limits the sum over micro-batches. It grows with their number: the limit of the mean stays.
        clip = max(0.0, self.param.clip_gradients) * self.growth(state.iteration)
        if self.sharding:
            self.sharding.begin()
        if self.in_step:  # else the server sets these, for the iteration of each update that it makes: _step_of()
            self._follow_decay(state.iteration)
            self._follow_momentum(state.iteration, rate)
        self.strategy.start(Step(state.iteration, rate, self.iter_size, clip, correction))
        return rate

    def next_iteration(self, iteration: int, until: int, stop: bool) -> int | None:
        """Sees that the masters hold the weights, then returns Asynchronous.next_iteration()."""
        assert self._asynchronous and self.sharding
        self.sharding.begin()
        return self._asynchronous.next_iteration(iteration, until, stop)

    def _step_of(self, updater: Updater, iteration: int) -> Step:
        """Returns the numbers of an iteration, and gives the updater its decay and momentum. Called in the server's
        thread in mode ASYNC, in which no rate reads the loss."""
        rate = self.rate(iteration, None, PlateauState())
        momentum, correction = self.momentum(iteration, rate), 1.0
        updater.set_weight_decay(self.weight_decay(iteration))
        if "momentum" in rule_of(self.param).constants:
            updater.set_constant("momentum", momentum)
        if self.param.momentum_correction and iteration and (last := self.rate(iteration - 1, None, PlateauState())):
            correction = rate / last
        return Step(iteration, rate, self.micro_batches(iteration), 0.0, correction)

    def micro_batches(self, iteration: int) -> int:
        """Returns how many micro-batches an iteration has on each rank: iter_size, times the growth of the batch."""
        return max(1, self.param.iter_size) * self.growth(iteration)

    def _follow_decay(self, iteration: int) -> None:
        decay = self.weight_decay(iteration)
        if decay != self._decay:
            self._decay = decay
            self.strategy.wait_all()  # servers may still update with the decay before
            self.strategy.updater.set_weight_decay(decay)

    def _follow_momentum(self, iteration: int, rate: float) -> None:
        momentum = self.momentum(iteration, rate)
        if momentum != self._momentum:
            self._momentum = momentum
            self.strategy.wait_all()
            self.strategy.updater.set_constant("momentum", momentum)
            self.strategy.updater.set_local_ratio(local_ratio(self.param, momentum))

    def release(self) -> None:
        """Marks all buckets ready, in backward's order, when all gradients are complete."""
        for bucket in self.buckets:
            self.queue.ready(bucket.index)

    def finish(self) -> None:
        """Lets strategies without servers reduce and update, after backward. Raises CommError if gradients are
        missing."""
        self.strategy.backward_done()

    def wait(self) -> None:
        """Returns when every update is in the weights: before a test, a snapshot, the end."""
        self.strategy.wait_all()

    def start_over(self) -> None:
        """Waits for all updates and forgets the iterations made: after a restore they may come again."""
        self.wait()
        self.strategy.start_over()

    def settle(self) -> None:
        """Collective. Waits as wait() does, and makes weights and history the same on all ranks: their average, where
        ranks have updated by themselves."""
        self.strategy.settle()

    def meets(self, iteration: int) -> bool:
        """Tells whether the ranks wait for each other in an iteration."""
        return self.strategy.meets(iteration)

    @property
    def in_step(self) -> bool:
        """Whether all ranks make every iteration, at the same time: in all modes but ASYNC."""
        return self._asynchronous is None

    @property
    def apart(self) -> bool:
        """Whether ranks have updated weights by themselves since weights were last the same on all."""
        return self.strategy.apart

    @property
    def is_local(self) -> bool:
        """Whether ranks ever update weights by themselves: in mode LOCAL."""
        return self.strategy.local is not None

    def meet(self, state: TrainingState) -> str:
        """Collective, in mode ASYNC, when next_iteration() has returned None. Sets the state's iteration to the one
        that all ranks have come to. Returns the log's line about staleness on rank 0."""
        assert self._asynchronous
        self._asynchronous.settle()
        state.iteration = self._asynchronous.settled
        return self._asynchronous.report()

    # What observers are told

    def values(self, iteration: int) -> ValuesRecord:
        """Returns the weights and mean gradients of this rank after an iteration, for which keep_gradients() was
        called. Waits for the update. With sharded updates there are no gradients: each rank has reduced other ones."""
        self.wait()
        terms = self.strategy.ranks * self.iter_size  # how many gradients each sum in the arena has
        weights, gradients = {}, {}
        for parameter in self.net.graph.params:
            tensor = self.net.tensor_of[parameter]
            if tensor.diff is not None and not parameter.statistics:
                name = f"{parameter.layer}/{parameter.index}"
                weights[name] = tensor.get()
                if not self.sharding:
                    gradients[name] = tensor.diff.get() / terms
        return ValuesRecord(iteration, weights, gradients)

    def trace(self, on: bool) -> None:
        """Begins to record the events of buckets, or stops it."""
        self.strategy.record(on)

    def events(self) -> tuple[Event, ...]:
        """Returns the recorded events, when buckets were reduced and updated, since the last call."""
        return tuple(self.strategy.events())

    def waited_by_bucket(self) -> tuple[int, ...]:
        """Returns how many nanoseconds forward has waited for each bucket so far."""
        return tuple(self.queue.waited_ns(bucket.index) for bucket in self.buckets)

    def waited_ns(self) -> int:
        """Returns the exposed communication so far: nanoseconds that the solver's thread has waited for gradients."""
        return self.strategy.waited_ns()

    def describe(self) -> str:
        """Returns how gradients are reduced, for the log."""
        return self.strategy.describe()

    def close(self) -> None:
        """Ends servers and channels. Not to be called in a run that failed: that one aborts."""
        self.strategy.close()
        if self._sync_channel is not None:
            self._sync_channel.close()


def _add_up(board: Board, channel: Channel, values: np.ndarray) -> None:
    """Sums values over the ranks, in place, in the middle of forward or backward. The board shows meanwhile that this
    rank waits."""
    with board.waiting():
        channel.allreduce(values)
