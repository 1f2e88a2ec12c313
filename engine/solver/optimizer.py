"""What a step does to parameters: everybody who trains uses this, the loop, Caffe's interface, `engine time`."""

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

    After it the next forward waits, parameter by parameter, for the updates under way; `wait` before anybody else looks
    at weights. weights, gradients: the arenas, float32, as views.
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
        """param: counts in iterations. where: the place of its lr_policy; sources: of the net's data, for the watchdog;
        number: of the net, as for Board.net().
        Raises ConfigError for rates or rules that are unknown, CommError if ranks disagree about buckets."""
        from engine.host import _core

        self.net, self.param, self.world = net, param, world
        self.rate, self.weight_decay = LearningRate(param, where), WeightDecay(param, where)
        self.momentum = Momentum(param, where)
        self.growth = BatchGrowth(param)
        self.iter_size = self.micro_batches(0)  # of the last update
        self._sources, self._number = sources, number
        settings = settings_of(world, param.comm_param)
        self.buckets: list[Bucket] = buckets_for(net, settings)
        shards = world.size > 1 and (settings.shard_updates or settings.max_staleness is not None)
        self.sharding = Sharding(net, world, self.buckets, settings) if shards else None
        self.history = History(net, rule_of(param).histories, self.sharding)
        self.gradients = np.asarray(net.gradients, np.float32)[: net.arena_size]
        self.weights = np.asarray(net.weights, np.float32)[: net.arena_size]
        self._decay, self._momentum = self.weight_decay(0), param.momentum
        self.rate_share = 1.0  # of the rate: smaller where ranks have died, and the global batch with them
        self.threads = _core.threads()
        self.strategy = self._make_strategy(settings)
        self._asynchronous = self.strategy if isinstance(self.strategy, Asynchronous) else None
        if self._asynchronous:
            self._asynchronous.step_of = self._step_of
        # On the main thread, between ops: a stream of its own, beside those of the servers.
        self._sync_channel = world.channel() if net.synchronised else None
        self.attach(net)

    def _make_strategy(self, settings: CommSettings, residual: np.ndarray | None = None) -> Strategy:
        """Collective. With an updater and a ready queue of self.buckets. residual: of the strategy before, if any."""
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
        """Collective, between two updates. Reduces the gradients of those to come in another way; updates are not to be
        sharded."""
        assert self.sharding is None
        before = self.strategy
        before.settle()
        before.close()
        self.buckets = buckets_for(self.net, settings)
        self.strategy = self._make_strategy(settings, before.residual)
        self.strategy.keep_gradients = before.keep_gradients
        self.attach(self.net)

    def forsake(self) -> None:
        """After World.revoke(): what is under way is lost. Returns when nothing touches the arenas any more."""
        self.strategy.forsake()

    def rejoin(self) -> None:
        """Collective, after World.shrink(): the ranks that are left reduce gradients, in the same buckets."""
        before = self.strategy
        self.strategy = self._make_strategy(before.settings)
        self.strategy.keep_gradients = before.keep_gradients
        if self._sync_channel is not None:
            self._sync_channel = self.world.channel()
        self.attach(self.net)

    def attach(self, net: Net) -> None:
        """Connects a net's program to the ready queue, the board and the sums over ranks (synchronised BatchNorm).
        net: the one that this was made for, or the same in other shapes, with the same parameters."""
        self.net = net
        net.program.set_queue(self.queue, gates(net, buckets_of(self.buckets)))
        net.set_board(self.world.board, self._number, self._sources, [bucket.name for bucket in self.buckets])
        if self._sync_channel is not None:
            # Not a method of this optimizer, which has the net: a program in C++ that held it would be freed by nobody.
            net.program.set_ranks(self.world.size, partial(_add_up, self.world.board, self._sync_channel))

    def weights_are_read(self) -> None:
        """After the net's weights were read from a file: training is to begin with all of them."""
        if self.sharding:
            self.sharding.begun = False

    def take_over_weights(self) -> None:
        """When the net's weights, which somebody may have set, are the same on all ranks: goes on from them."""
        if self.sharding:
            self.sharding.take_over()

    def keep_gradients(self) -> None:
        """From now on the arena holds the reduced gradients after an update, for those who look at them."""
        self.strategy.keep_gradients = True

    # The step

    @contextmanager
    def update(self, state: TrainingState, samples: int, average: WeightAverage | None = None) -> Iterator[float]:
        """The update of one iteration, around the backward pass that completes its gradients: yields its rate. Then the
        state has advanced by so many samples over all ranks, and the average of the weights, if any, by a step.

        An error inside leaves the iteration out, on one rank; with several it ends the servers' wait for gradients that
        will not come.
        """
        try:
            yield self.begin(state)
            # Of several ranks this one may wait for the others, and an interrupt ends the run wherever it comes.
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
        """After an error, of which the reason tells: nobody waits any more for what is not in the weights yet. One rank
        may go on, several may not."""
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
        # Of the sum over micro-batches, as in Caffe: with more of them the limit of their mean stays.
        clip = max(0.0, self.param.clip_gradients) * self.growth(state.iteration)
        if self.sharding:
            self.sharding.begin()
        if self.in_step:  # else its server makes updates of iterations of its own
            self._follow_decay(state.iteration)
            self._follow_momentum(state.iteration, rate)
        self.strategy.start(Step(state.iteration, rate, self.iter_size, clip, correction))
        return rate

    def next_iteration(self, iteration: int, until: int, stop: bool) -> int | None:
        """See Asynchronous.next_iteration(), for which these weights are to be trained."""
        assert self._asynchronous and self.sharding
        self.sharding.begin()
        return self._asynchronous.next_iteration(iteration, until, stop)

    def _step_of(self, updater: Updater, iteration: int) -> Step:
        """In the server's thread: the constants of an iteration, of rates that do not read the loss."""
        rate = self.rate(iteration, None, PlateauState())
        momentum, correction = self.momentum(iteration, rate), 1.0
        updater.set_weight_decay(self.weight_decay(iteration))
        if "momentum" in rule_of(self.param).constants:
            updater.set_constant("momentum", momentum)
        if self.param.momentum_correction and iteration and (last := self.rate(iteration - 1, None, PlateauState())):
            correction = rate / last
        return Step(iteration, rate, self.micro_batches(iteration), 0.0, correction)

    def micro_batches(self, iteration: int) -> int:
        """Of an iteration of one rank: iter_size, as it has grown."""
        return max(1, self.param.iter_size) * self.growth(iteration)

    def _follow_decay(self, iteration: int) -> None:
        decay = self.weight_decay(iteration)
        if decay != self._decay:
            self._decay = decay
            self.strategy.wait_all()  # for servers that use the one before
            self.strategy.updater.set_weight_decay(decay)

    def _follow_momentum(self, iteration: int, rate: float) -> None:
        momentum = self.momentum(iteration, rate)
        if momentum != self._momentum:
            self._momentum = momentum
            self.strategy.wait_all()
            self.strategy.updater.set_constant("momentum", momentum)
            self.strategy.updater.set_local_ratio(local_ratio(self.param, momentum))

    def release(self) -> None:
        """Marks all buckets ready at once, in the order in which backward would have, for gradients that are there."""
        for bucket in self.buckets:
            self.queue.ready(bucket.index)

    def finish(self) -> None:
        """After backward: what strategies without servers do. Raises CommError if gradients are missing."""
        self.strategy.backward_done()

    def wait(self) -> None:
        """Returns when every update is in the weights: before a test, a snapshot, the end."""
        self.strategy.wait_all()

    def start_over(self) -> None:
        """Before a restore, after which iterations may come again."""
        self.wait()
        self.strategy.start_over()

    def settle(self) -> None:
        """Collective. The same, and weights and history are the same on all ranks, also where these update by
        themselves: then their average."""
        self.strategy.settle()

    def meets(self, iteration: int) -> bool:
        """Whether the ranks wait for each other in it."""
        return self.strategy.meets(iteration)

    @property
    def in_step(self) -> bool:
        """Whether all ranks make the same iterations, together: in all modes but ASYNC."""
        return self._asynchronous is None

    @property
    def apart(self) -> bool:
        """Whether ranks have updated weights by themselves since these were last the same."""
        return self.strategy.apart

    @property
    def is_local(self) -> bool:
        """Whether ranks ever do."""
        return self.strategy.local is not None

    def meet(self, state: TrainingState) -> str:
        """Collective, where ranks are not in step: when next_iteration() is None. The state is in the iteration that
        all have come to. Returns what the log has to say about staleness, on rank 0."""
        assert self._asynchronous
        self._asynchronous.settle()
        state.iteration = self._asynchronous.settled
        return self._asynchronous.report()

    # What observers are told

    def values(self, iteration: int) -> ValuesRecord:
        """After an iteration whose gradients were kept: what is learned on this rank. Waits for the update."""
        self.wait()
        share = self.strategy.ranks * self.iter_size
        weights, gradients = {}, {}
        for parameter in self.net.graph.params:
            tensor = self.net.tensor_of[parameter]
            if tensor.diff is not None and not parameter.statistics:
                name = f"{parameter.layer}/{parameter.index}"
                weights[name] = tensor.get()
                if not self.sharding:  # of which each rank has reduced another share
                    gradients[name] = tensor.diff.get() / share
        return ValuesRecord(iteration, weights, gradients)

    def trace(self, on: bool) -> None:
        """Keep the events of buckets from now on, or stop."""
        self.strategy.record(on)

    def events(self) -> tuple[Event, ...]:
        """What has been reduced and updated since the last call, while traced."""
        return tuple(self.strategy.events())

    def waited_by_bucket(self) -> tuple[int, ...]:
        """Nanoseconds that forward has waited for each bucket so far."""
        return tuple(self.queue.waited_ns(bucket.index) for bucket in self.buckets)

    def waited_ns(self) -> int:
        """Exposed communication so far: how long the solver's thread has waited for reduced gradients."""
        return self.strategy.waited_ns()

    def describe(self) -> str:
        """How gradients are reduced, for the log."""
        return self.strategy.describe()

    def close(self) -> None:
        """Ends servers and channels. Not for a run that failed: that one aborts."""
        self.strategy.close()
        if self._sync_channel is not None:
            self._sync_channel.close()


def _add_up(board: Board, channel: Channel, values: np.ndarray) -> None:
    """Over the ranks, in the middle of forward and backward: the watchdog is to know that this one waits."""
    with board.waiting():
        channel.allreduce(values)
