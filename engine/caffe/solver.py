"""caffe.SGDSolver and the others: training driven step by step by a script, on one rank or, under mpiexec, on many.

```python
solver = caffe.SGDSolver("solver.prototxt")
solver.net.copy_from("pretrained.caffemodel")
solver.step(100)
solver.net.params["ip"][0].data  # after the 100 updates
```
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from engine import proto
from engine.caffe import mode
from engine.caffe.changing import ChangingNet
from engine.caffe.inputs import FedBySolver
from engine.caffe.net import Net
from engine.caffe.ranks import close_with, ranks, unwatched, watched
from engine.caffe.user_errors import as_raised
from engine.comm.settings import watchdog_seconds
from engine.comm.world import World
from engine.config import NetConfig, SolverConfig, net_of_solver, nets_of_solver, read_solver
from engine.errors import ConfigError
from engine.host.interrupts import undisturbed, whole
from engine.host.ranks import failing_alike
from engine.layers.python import ShapesChanged, allow_modules
from engine.net import Counters
from engine.net import Net as EngineNet
from engine.solver.model_parallel import ModelParallel
from engine.solver.resume import take_prefix
from engine.solver.schedules import need_max_iter
from engine.solver.signals import STOP
from engine.solver.solver import Solver as EngineSolver
from engine.solver.update import solver_types, unknown_type
from engine.solver.validate import check_snapshots, saves, saves_on_the_way
from engine.solver.weak import weakly
from engine.watchdog.board import SET_UP


class _Solver(EngineSolver):
    """Calls back around every iteration, and where layers written in Python change their shapes."""

    on_start: Callable[[], None] | None = None
    on_change: Callable[[ShapesChanged], None]

    def step(self) -> None:
        if self.on_start is not None:
            self.on_start()
        with self._whole_or_not_at_all():
            super().step()

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Around an iteration: one that an error leaves out leaves nothing behind, neither its loss nor, in running
        sums, its batch."""
        iteration, state = self.iteration, self.state.copy()
        statistics = [(values, values.copy()) for values in self.net.statistics()]
        try:
            yield
        except BaseException:
            if self.iteration == iteration:
                with undisturbed():
                    self.state.take(state)
                    for values, before in statistics:
                        values[...] = before
            raise

    @watched()
    def start(self) -> None:
        """Weights are the same everywhere, and data flows."""
        self.replica.share()
        if not self.feeder.running:
            self.feeder.start(self.state.samples_seen)

    def _forward(self, micro: int, first_sample: int) -> float:
        while True:
            try:
                return super()._forward(micro, first_sample)
            except ShapesChanged as change:
                if self.world.size > 1 and (self.net.synchronised or self.model_parallel):
                    raise change.layer.error(
                        "has given its tops other shapes, on this rank, than the net was built for: ranks that "
                        "compute layers together (bn_sync, model_parts) need the same at any time; give it one shape, "
                        "or take these out"
                    ) from None
                self.on_change(change)

    def apply_update(self) -> None:
        """The update of an iteration, of gradients that are there; its loss is that of the last forward."""
        try:
            with self._whole_or_not_at_all():
                self._apply_update()
        finally:
            self._find_first_sample()

    def _apply_update(self) -> None:
        self.state.recent_loss.append(self.net.loss())
        if self.average:
            self.optimizer.wait()
            self.average.catch_up()
        with self.optimizer.update(self.state, 0, self.average):  # samples were counted when they were taken
            self.optimizer.release()

    def count_pass(self, first_sample: int) -> Counters:
        """Of a forward that a script runs: its randomness is that of step(), and no other pass takes its batch."""
        one = max(1, self.feeder.batch_size) * self.world.size
        counters = Counters(self.iteration, first_sample, self.state.samples_seen // one)
        self.state.samples_seen += one
        self._find_first_sample()
        return counters

    def rebuild_net(self, config: NetConfig, strict: bool) -> EngineNet:
        """The net in other shapes, with the parameters that it has. `config`: like the one that it was built from;
        strict: as in engine.net.Net."""
        self.optimizer.wait()
        before = self.net
        self.use_net(EngineNet(config, proto.TRAIN, before.options, share=before, before=before, strict=strict))
        return self.net

    def give_up(self) -> None:
        """After an error: leaves out the iteration that it has met, whose data the next one gets again."""
        self.optimizer.abandon(f"iteration {self.iteration} has failed or was interrupted: ranks may have parted")
        for feeder in self.feeders:
            feeder.stop()

    def close(self) -> None:
        if self.world.size > 1 and self.optimizer.queue.stopped:
            self.world.abort(
                f"engine: [rank {self.world.rank}] training has failed or was interrupted within an iteration"
            )
        super().close()


class Solver:
    """A solver of its file's type. `net` and `test_nets` are caffe.Nets, their blobs and parameters live; `param` is
    the SolverParameter. Raises EngineErrors: ConfigErrors for files that cannot be built, and what training raises.
    What a layer written in Python raises passes through as it is.

    Ctrl-C ends step() and solve() when the iteration is done, or breaks off a test, on all ranks, and raises
    KeyboardInterrupt; solve() takes the last snapshot. A second one ends them at once: that iteration is left out. With
    one rank the solver can go on.
    """

    _type = ""  # of a class that does not go by the file

    @as_raised
    @watched()
    def __init__(self, solver_file: str | os.PathLike):
        allow_modules()  # of nets that the calling program has chosen itself
        config = read_solver(solver_file)
        if self._type:
            config.message.type = self._type
        if not (config.message.HasField("max_iter") or config.message.HasField("max_epoch")):
            _leave_open(config)
        world = ranks()
        config.rank, config.ranks = world.rank, world.size
        world.board.enter(SET_UP)
        if saves_on_the_way(config.message):
            _check_snapshots(config, world)
        if world.size > 1:
            world.watch(watchdog_seconds(config.message.comm_param, where=config.where(path="comm_param")))
        if config.message.random_seed < 0 and mode.has_seed():
            config.message.random_seed = mode.seed()
        self._solver = _Solver(config, world, every_blob=True)
        if config.message.weights:
            self._solver.load_weights(list(config.message.weights))
        self._callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []
        # Nothing below holds this object, and no net is held by what it holds: a solver that the script drops is gone.
        self._solver.on_change = weakly(self._follow)
        solver = self._solver
        fed = FedBySolver(solver.feeder, solver.start, lambda: solver.state.samples_seen, count=solver.count_pass)
        parts = solver.model_parallel.describe()
        train_config = net_of_solver(config, proto.TRAIN)
        self._train_net = ChangingNet.of_solver(solver.net, train_config, fed, solver.rebuild_net)
        self._changing = [self._train_net]  # what is behind net and test_nets
        for each, net_config in zip(solver.test_nets.evaluators, nets_of_solver(config).tests):
            # Tests end the stream: it then begins where the next will.
            fed = FedBySolver(each.feeder, each.start, lambda each=each: each.samples, _refusal(solver.model_parallel))
            test_net = ChangingNet.of_solver(each.net, net_config, fed, each.rebuild_net, train=self._train_net)
            self._changing.append(test_net)
        self._nets = [Net._of_solver(net, parts) for net in self._changing]
        self._has_prefix = False
        close_with(self, solver.close)

    def __repr__(self) -> str:
        solver = self._solver
        of = f"iteration {self.iter} of {solver.param.max_iter}"
        return f"<{solver.param.type}Solver of {solver.config.path}: {of}, net '{self.net.name}'>"

    @property
    def net(self) -> Net:
        return self._nets[0]

    @net.setter
    def net(self, net: object) -> None:
        raise AttributeError(
            "solver.net cannot be set: it is the net of the solver's file; solver.net.copy_from(FILE), and what is "
            "written into solver.net.params[...][i].data, give it other weights",
            name="net",
            obj=self,
        )

    @property
    def test_nets(self) -> tuple[Net, ...]:
        return tuple(self._nets[1:])

    @test_nets.setter
    def test_nets(self, nets: object) -> None:
        raise AttributeError(
            "solver.test_nets cannot be set: they are the test nets of the solver's file, and read the weights of "
            "solver.net",
            name="test_nets",
            obj=self,
        )

    @property
    def iter(self) -> int:
        return self._solver.iteration

    @property
    def param(self) -> proto.SolverParameter:
        return self._solver.param

    @param.setter
    def param(self, param: proto.SolverParameter) -> None:
        """Takes over base_lr alone: Caffe lets scripts change nothing else of a solver's parameters."""
        self._solver.param.base_lr = param.base_lr

    # What was written into arrays goes into a run, and what the run has done comes back.

    def _push(self) -> None:
        for net in self._changing:
            net.reshape()
            net.live.push()
        if self._solver.replica.is_shared:
            self._solver.optimizer.take_over_weights()

    @as_raised
    @watched()
    def _run(self, run: Callable[[], object]) -> None:
        """What is to go on after an interrupt or another error. Raises KeyboardInterrupt, on all ranks, at the end of a
        call in which it has come to one."""
        solver = self._solver
        with solver.signals.interrupt():
            try:
                self._push()
                run()
                with undisturbed():
                    self._pull()
                interrupted = self._agree_on_interrupts()
            except BaseException:
                with undisturbed():
                    solver.give_up()
                    if solver.world.size == 1:
                        self._pull()
                solver.signals.clear(STOP)
                raise
        if solver.world.size == 1:
            interrupted = solver.signals.interrupted  # also one that has come just now
        if interrupted or not solver.signals.interrupted:  # the next call ends with one that came later than the others
            solver.signals.clear(STOP)
        if interrupted:
            raise KeyboardInterrupt

    def _agree_on_interrupts(self) -> bool:
        """Collective, at the end of a call, when no rank has long to wait: World.agree() would wait asleep."""
        came = np.array([self._solver.signals.interrupted], np.int64)
        self._solver.world.allreduce(came)
        return bool(came[0])

    def _pull(self) -> None:
        self._solver.optimizer.wait()
        for net in self._changing:
            net.live.pull()

    def _follow(self, change: ShapesChanged) -> None:
        self._solver.optimizer.wait()
        self._train_net.live.pull()  # what the steps so far have made of the weights
        self._train_net.follow(change)

    # Running

    def step(self, iterations: int) -> None:
        """Trains for `iterations`, with the tests and snapshots that fall due. Collective. Raises TypeError for what is
        no whole number, EngineError where another process has the snapshot_prefix of a solver that takes snapshots,
        whether or not one falls due yet: scripts step one by one, and would lose what they have trained till then."""
        try:
            count = operator.index(iterations)
        except TypeError:
            raise TypeError(f"step() takes a whole number of iterations; got {iterations!r}") from None
        if saves_on_the_way(self._solver.param):
            self._take_prefix()
        self._run(lambda: self._train(count))

    @watched()
    def _take_prefix(self) -> None:
        """Collective, before the first iteration of those that lead to a snapshot: raises EngineError now, not there,
        where it could not be written."""
        if self._has_prefix:
            return
        config, world = self._solver.config, self._solver.world
        _check_snapshots(config, world)
        with failing_alike(world):
            if world.rank == 0:  # which writes
                take_prefix(config, world)
                self._solver.snapshots.lock()  # of which it then is, too, where another solver of this script has it
        self._has_prefix = True

    def _train(self, iterations: int) -> None:
        self._solver.start()
        self._solver.run(self._solver.iteration + iterations)

    def solve(self, resume_file: str | os.PathLike | None = None) -> None:
        """Trains up to max_iter, from `resume_file`, a solverstate, if there is one, and writes the last snapshot.
        Raises EngineError where that, or another, could not be written."""
        if saves(self._solver.param):
            self._take_prefix()
        if resume_file:
            self.restore(resume_file)
        self._run(self._solver.solve)

    @as_raised
    @whole()
    @watched()
    def snapshot(self) -> None:
        """Collective."""
        self._push()
        self._solver.replica.share()
        self._solver.snapshot()
        self._pull()

    @as_raised
    @whole()
    @watched()
    def restore(self, path: str | os.PathLike) -> None:
        """Collective. Goes on from a solverstate and the weights that it names. Raises WeightsError."""
        self._push()
        self._solver.world.board.enter(SET_UP)  # files may be slow
        self._solver.restore(str(path))
        self._solver.replica.share()
        self._solver.feeder.stop()
        self._pull()

    def apply_update(self) -> None:
        """An iteration's update, with the gradients that net.params holds. Raises ConfigError in mode ASYNC."""
        self._refuse_async("apply_update()")
        self._run(self._update)

    def _update(self) -> None:
        self._solver.start()
        self._solver.apply_update()

    def _refuse_async(self, call: str) -> None:
        """Where a program would look at weights, and set them, that servers are updating meanwhile."""
        if not self._solver.optimizer.in_step:
            raise ConfigError(
                f"comm_param.mode: ASYNC does not go together with {call}, for ranks update each other's weights at "
                "any moment of a step: use step() alone, or another mode",
                self._solver.config.place("comm_param.mode"),
            )

    def share_weights(self, net: Net) -> None:
        """`net` reads this solver's weights from now on."""
        net.share_with(self.net)

    def add_callback(self, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]) -> None:
        """Called at every iteration, before its forward, and when this rank's gradients stand in net.params. What they
        write into arrays is used. Gradients are then reduced after backward, not while it runs. Raises ConfigError in
        mode ASYNC."""
        self._refuse_async("add_callback()")
        self._callbacks.append((on_start, on_gradients_ready))
        call_back = weakly(self._call_back)
        self._solver.on_start, self._solver.on_gradients = partial(call_back, 0), partial(call_back, 1)

    def _call_back(self, which: int) -> None:
        if which == 0:
            self._solver.optimizer.wait()
        for net in self._changing:
            net.live.pull()
        with unwatched():
            for callbacks in self._callbacks:
                callbacks[which]()
        self._push()


def _check_snapshots(config: SolverConfig, world: World) -> None:
    """Collective. See check_snapshots()."""
    with failing_alike(world):
        if world.rank == 0:  # which writes
            check_snapshots(config.message, config.path, config.where(path="snapshot_prefix"))


def _refusal(divided: ModelParallel) -> str:
    """Why programs may not run test nets, whose whole layers are gathered by all ranks; "" if they may."""
    if not divided:
        return ""
    return (
        f"ranks hold {divided.describe()}, and test nets have them whole only in the tests of step() and solve(): "
        "forward() would score old weights; give test_interval, or take model_parallel out"
    )


def _leave_open(config: SolverConfig) -> None:
    """A script that steps need not say how often: solve() then does nothing, as in Caffe. Schedules may need it."""
    if not need_max_iter(config.message):
        config.message.max_iter = 0


@functools.cache
def _class_of(kind: str) -> type[Solver]:
    more = (Solver.__doc__ or "").partition(". ")[2]  # after whose type it is
    about = f'A solver of type: "{kind}", whatever its file says.\n\n    {more}'
    return type(f"{kind}Solver", (Solver,), {"_type": kind, "__module__": __name__, "__doc__": about})


def __getattr__(name: str) -> type[Solver]:
    """SGDSolver, AdamSolver and so on, one class for each type of solver, made when a script first asks for it."""
    kind = name.removesuffix("Solver")
    if kind == name or kind.startswith("_") or kind not in solver_types():
        raise AttributeError(f"module 'caffe' has no attribute '{name}'", name=name)
    return _class_of(kind)


def __dir__() -> list[str]:
    return sorted([*globals(), *(f"{kind}Solver" for kind in solver_types())])


def get_solver(solver_file: str | os.PathLike) -> Solver:
    """The solver of the file's `type`. Raises ConfigError for an unknown one."""
    config: SolverConfig = read_solver(solver_file)
    kind = config.message.type
    if wrong := unknown_type(kind):
        raise ConfigError(wrong, config.where(path="type"))
    return _class_of(kind)(solver_file)
