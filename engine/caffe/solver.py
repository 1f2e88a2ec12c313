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
from engine.host.interrupts import delaying_interrupt, undisturbed
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
    """Calls functions of a script in every iteration, and the caffe.Solver if Python layers change shapes."""

    on_start: Callable[[], None] | None = None  # called before the forward of an iteration
    on_change: Callable[[ShapesChanged], None]  # builds the net for the new shapes

    def step(self) -> None:
        if self.on_start is not None:
            self.on_start()
        with self._whole_or_not_at_all():
            super().step()

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Returns a context for an iteration: if an error ends it, its loss is not kept, and running sums are set back
        to what they were before its batch."""
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
        """Gives all ranks the same weights, and starts the feeder if it is not running."""
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
        """Does the update of an iteration with the gradients that the net has; its loss is that of the last forward."""
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
        """Counts a forward that a script runs, whose first sample is `first_sample`. Returns the counters of its
        randomness, which are those that step() would have; no other pass takes its batch."""
        one = max(1, self.feeder.batch_size) * self.world.size
        counters = Counters(self.iteration, first_sample, self.state.samples_seen // one)
        self.state.samples_seen += one
        self._find_first_sample()
        return counters

    def rebuild_net(self, config: NetConfig, strict: bool) -> EngineNet:
        """Builds the net again in other shapes, with the parameters that it has, and returns it.

        config: the one that it was built from, in other shapes. strict: as in engine.net.Net."""
        self.optimizer.wait()
        before = self.net
        self.use_net(EngineNet(config, proto.TRAIN, before.options, share=before, before=before, strict=strict))
        return self.net

    def give_up(self) -> None:
        """Leaves out an iteration that an error has ended; the next one gets its data again."""
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
    An exception of a layer written in Python passes through as it is.

    Ctrl-C ends step() and solve() on all ranks, at the end of the iteration or within a test, and raises
    KeyboardInterrupt; solve() takes the last snapshot before. A second Ctrl-C ends them at once and leaves out that
    iteration. With one rank the solver can go on.
    """

    _type = ""  # the type of the class, as of SGDSolver; "": that of the file

    @as_raised
    @watched()
    def __init__(self, solver_file: str | os.PathLike):
        allow_modules()  # the calling script has chosen these nets, and so the code of their Python layers
        config = read_solver(solver_file)
        if self._type:
            config.message.type = self._type
        if not (config.message.HasField("max_iter") or config.message.HasField("max_epoch")):
            _leave_max_iter_open(config)
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
        # Nothing below may hold this object or one of its nets: a solver that the script drops has to be freed at once.
        self._solver.on_change = weakly(self._follow)
        solver = self._solver
        fed = FedBySolver(solver.feeder, solver.start, lambda: solver.state.samples_seen, count=solver.count_pass)
        parts = solver.model_parallel.describe()
        train_config = net_of_solver(config, proto.TRAIN)
        self._train_net = ChangingNet.of_solver(solver.net, train_config, fed, solver.rebuild_net)
        self._changing = [self._train_net]  # the nets behind `net` and `test_nets`
        for each, net_config in zip(solver.test_nets.evaluators, nets_of_solver(config).tests):
            # Each test ends the stream of its net, so that a script's forward begins where the next test will.
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
        """Takes over base_lr alone: in Caffe, scripts can change nothing else of a solver's parameters."""
        self._solver.param.base_lr = param.base_lr

    # Arrays: _push() takes what scripts have written into a run, _pull() shows them its results.

    def _push(self) -> None:
        for net in self._changing:
            net.reshape()
            net.live.push()
        if self._solver.replica.is_shared:
            self._solver.optimizer.take_over_weights()

    @as_raised
    @watched()
    def _run(self, run: Callable[[], object]) -> None:
        """Calls run() between _push() and _pull(), so that the solver can go on after an interrupt or another error.
        Raises KeyboardInterrupt at the end, on all ranks, if an interrupt has come to one of them."""
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
        if interrupted or not solver.signals.interrupted:  # one that came after the ranks agreed ends the next call
            solver.signals.clear(STOP)
        if interrupted:
            raise KeyboardInterrupt

    def _agree_on_interrupts(self) -> bool:
        """Returns whether an interrupt has come to any rank. Collective. Ranks reach the end of a call at about the
        same time, so they wait for this awake; World.agree() would wait asleep."""
        came = np.array([self._solver.signals.interrupted], np.int64)
        self._solver.world.allreduce(came)
        return bool(came[0])

    def _pull(self) -> None:
        self._solver.optimizer.wait()
        for net in self._changing:
            net.live.pull()

    def _follow(self, change: ShapesChanged) -> None:
        self._solver.optimizer.wait()
        self._train_net.live.pull()  # the arrays get the weights as the steps so far have left them
        self._train_net.follow(change)

    # Running

    def step(self, iterations: int) -> None:
        """Trains for `iterations`, with the tests and snapshots that fall due. Collective.

        Raises TypeError for what is no whole number. Raises EngineError if the solver takes snapshots and another
        process has its snapshot_prefix, even if none falls due yet: a script that steps one by one would otherwise lose
        what it has trained till then."""
        try:
            count = operator.index(iterations)
        except TypeError:
            raise TypeError(f"step() takes a whole number of iterations; got {iterations!r}") from None
        if saves_on_the_way(self._solver.param):
            self._take_prefix()
        self._run(lambda: self._train(count))

    @watched()
    def _take_prefix(self) -> None:
        """Takes the snapshot_prefix for this process, before the first iteration. Collective. Raises EngineError if
        snapshots could not be written."""
        if self._has_prefix:
            return
        config, world = self._solver.config, self._solver.world
        _check_snapshots(config, world)
        with failing_alike(world):
            if world.rank == 0:  # only this rank writes
                take_prefix(config, world)
                self._solver.snapshots.lock()  # another solver of this script may have the prefix, too
        self._has_prefix = True

    def _train(self, iterations: int) -> None:
        self._solver.start()
        self._solver.run(self._solver.iteration + iterations)

    def solve(self, resume_file: str | os.PathLike | None = None) -> None:
        """Trains up to max_iter, from the solverstate `resume_file` if it is given, and writes the last snapshot.
        Collective. Raises EngineError if a snapshot could not be written."""
        if saves(self._solver.param):
            self._take_prefix()
        if resume_file:
            self.restore(resume_file)
        self._run(self._solver.solve)

    @as_raised
    @delaying_interrupt()
    @watched()
    def snapshot(self) -> None:
        """Writes the weights and the solverstate. Collective."""
        self._push()
        self._solver.replica.share()
        self._solver.snapshot()
        self._pull()

    @as_raised
    @delaying_interrupt()
    @watched()
    def restore(self, path: str | os.PathLike) -> None:
        """Goes on from a solverstate and the weights that it names. Collective. Raises WeightsError."""
        self._push()
        self._solver.world.board.enter(SET_UP)  # files may be slow
        self._solver.restore(str(path))
        self._solver.replica.share()
        self._solver.feeder.stop()
        self._pull()

    def apply_update(self) -> None:
        """Does an iteration's update with the gradients that net.params holds. Raises ConfigError in mode ASYNC."""
        self._refuse_async("apply_update()")
        self._run(self._update)

    def _update(self) -> None:
        self._solver.start()
        self._solver.apply_update()

    def _refuse_async(self, call: str) -> None:
        """Raises ConfigError in mode ASYNC for a call in which the script would read or set weights while servers
        update them."""
        if not self._solver.optimizer.in_step:
            raise ConfigError(
                f"comm_param.mode: ASYNC does not go together with {call}, for ranks update each other's weights at "
                "any moment of a step: use step() alone, or another mode",
                self._solver.config.place("comm_param.mode"),
            )

    def share_weights(self, net: Net) -> None:
        """Lets `net` read this solver's weights from now on."""
        net.share_with(self.net)

    def add_callback(self, on_start: Callable[[], None], on_gradients_ready: Callable[[], None]) -> None:
        """Adds two functions to call in every iteration: on_start before its forward, on_gradients_ready when this
        rank's gradients are in net.params. What they write into arrays is used.

        Gradients are reduced after backward from now on, not while it runs. Raises ConfigError in mode ASYNC."""
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
    """Raises as check_snapshots(), on all ranks alike. Collective."""
    with failing_alike(world):
        if world.rank == 0:  # only this rank writes
            check_snapshots(config.message, config.path, config.where(path="snapshot_prefix"))


def _refusal(divided: ModelParallel) -> str:
    """Returns why scripts may not run test nets; "" if they may. Under model_parallel, ranks hold parts of layers, and
    gather the whole ones for the solver's own tests only."""
    if not divided:
        return ""
    return (
        f"ranks hold {divided.describe()}, and test nets have them whole only in the tests of step() and solve(): "
        "forward() would score old weights; give test_interval, or take model_parallel out"
    )


def _leave_max_iter_open(config: SolverConfig) -> None:
    """Sets max_iter to 0 unless a schedule needs it: a script that calls step() need not say how often. solve() then
    does nothing, as in Caffe."""
    if not need_max_iter(config.message):
        config.message.max_iter = 0


@functools.cache
def _class_of(kind: str) -> type[Solver]:
    more = (Solver.__doc__ or "").partition(". ")[2]  # the docstring after "A solver of its file's type."
    about = f'A solver of type: "{kind}", whatever its file says.\n\n    {more}'
    return type(f"{kind}Solver", (Solver,), {"_type": kind, "__module__": __name__, "__doc__": about})


def __getattr__(name: str) -> type[Solver]:
    """Returns the class of a solver type, SGDSolver and so on, which is made when a script first asks for it."""
    kind = name.removesuffix("Solver")
    if kind != name:
        ranks()  # divides the cores before the extension, which knows the types, brings libgomp
    if kind == name or kind.startswith("_") or kind not in solver_types():
        raise AttributeError(f"module 'caffe' has no attribute '{name}'", name=name)
    return _class_of(kind)


def __dir__() -> list[str]:
    return sorted([*globals(), *(f"{kind}Solver" for kind in solver_types())])


def get_solver(solver_file: str | os.PathLike) -> Solver:
    """Returns a solver of the file's `type`. Raises ConfigError for an unknown type."""
    ranks()  # as in __getattr__()
    config: SolverConfig = read_solver(solver_file)
    kind = config.message.type
    if wrong := unknown_type(kind):
        raise ConfigError(wrong, config.where(path="type"))
    return _class_of(kind)(solver_file)
