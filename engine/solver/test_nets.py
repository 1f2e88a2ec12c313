"""The test nets of a solver: runs them when a test is due, and keeps how far each has read its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from engine.config import SolverConfig, nets_of_solver
from engine.data.feeder import Feeder
from engine.inference.evaluator import Evaluator, TestInterrupted
from engine.report.log import log
from engine.report.observer import TestRecord
from engine.solver.goals import Goals
from engine.solver.plan import warn_of_other_classes
from engine.solver.validate import check_tests, tests

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.net import Net, NetOptions
    from engine.net.kernel_table import Kernels
    from engine.solver.calendar import Calendar
    from engine.solver.ema import WeightAverage
    from engine.solver.model_parallel import ModelParallel
    from engine.solver.snapshots import Snapshots
    from engine.solver.state import GoalsState


class TestNets:
    """Tests the weights of the train net, by an Evaluator for each test net. There are none if the solver does not
    test.

    goals: what the outputs of tests decide."""

    def __init__(
        self,
        config: SolverConfig,
        world: World,
        train: Net,
        train_feeder: Feeder,
        options: NetOptions,
        *,
        make_feeder: Callable[..., Feeder],
        kernels: Kernels,
    ):
        """config: the solver, in iterations. options: of the nets. make_feeder: makes what feeds them, with Feeder's
        arguments. Raises ConfigErrors, DataError."""
        self._param = param = config.message
        batches = sum(train_feeder.ring_bytes().values())  # memory that training takes later
        options = options.replace(besides=lambda learned: {"": batches})
        self.evaluators = [
            Evaluator(
                net,
                world,
                options,
                share=train,
                make_feeder=make_feeder,
                ap_version=param.ap_version,
                show_per_class=param.show_per_class_result,
                index=index,
                kernels=kernels,
            )
            for index, net in enumerate(nets_of_solver(config).tests if tests(param) else ())
        ]
        check_tests(param, [bool(each.batch_size) for each in self.feeders], config.place)
        for each in self.feeders if not param.test_iter else ():
            each.require_epoch()
        for each in self.feeders:
            warn_of_other_classes(train_feeder, each)
        self.goals = Goals(param, [evaluator.net.graph for evaluator in self.evaluators], config.place)
        self._last: tuple[int, list[int]] = -1, []  # the iteration of the last test, and the samples before it

    @property
    def feeders(self) -> list[Feeder]:
        """The feeders of all test nets."""
        return [evaluator.feeder for evaluator in self.evaluators]

    @property
    def samples(self) -> list[int]:
        """The number of samples that each net has read: where in its data the next test begins."""
        return [evaluator.samples for evaluator in self.evaluators]

    @samples.setter
    def samples(self, samples: Sequence[int]) -> None:
        self._last = -1, []
        # A snapshot's solver may have had more or fewer test nets.
        for evaluator, count in zip(self.evaluators, samples, strict=False):
            evaluator.samples = count

    def samples_to_save(self, iteration: int) -> list[int]:
        """Returns the samples for a snapshot of `iteration`. If that iteration's test has been made, they are those
        before it: a run that goes on from the snapshot repeats it."""
        at, before = self._last
        return before if at == iteration else self.samples

    def is_due(self, iteration: int, calendar: Calendar) -> bool:
        """Tells whether a test is due after `iteration` iterations."""
        param = self._param
        if not self.evaluators or not calendar.is_due(iteration, param.test_interval, param.test_epoch):
            return False
        return iteration > 0 or param.test_initialization

    def run(
        self, iteration: int, average: WeightAverage | None, model_parallel: ModelParallel, stop: Callable[[], bool]
    ) -> list[TestRecord]:
        """Collective. Tests each net whose test_iter is not 0, on the average of the weights if there is one, else on
        the weights, and logs its outputs.

        stop: asked before each batch whether to break off. Raises TestInterrupted on all ranks if it told one of them
        so; the next test then begins where this one did."""
        self._last = iteration, (before := self.samples)
        records: list[TestRecord] = []
        for index, evaluator in enumerate(self.evaluators):
            log(f"Iteration {iteration}, Testing net (#{index})")
            count = self._param.test_iter[index] if index < len(self._param.test_iter) else None
            if count == 0:
                continue
            try:
                with average.in_use() if average else nullcontext():
                    model_parallel.copy_to(evaluator.net)
                    values = evaluator.run(count, stop=stop)
            except TestInterrupted:
                log("Test interrupted.")
                self.samples = before
                raise
            evaluator.log_outputs(values)
            records.append(TestRecord(iteration, index, values, evaluator.loss_weights))
        return records

    def find_best(self, state: GoalsState, snapshots: Snapshots) -> None:
        """Collective. Makes the state forget the best weights that it knows of, if their file is not there any more."""
        best = self.goals.best
        if state.best_iteration is None or (best and snapshots.find_best(state.best_iteration)):
            return
        if best:
            log(f"The best weights, of iteration {state.best_iteration}, are not there: the next test counts as best")
        state.best_value = state.best_iteration = state.best_goal = None

    def close(self) -> None:
        """Ends data threads and closes data sources."""
        for evaluator in self.evaluators:
            evaluator.close()
