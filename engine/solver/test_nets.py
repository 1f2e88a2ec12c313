"""The test nets of a solver: how far each has read its data, and what the run makes of their outputs."""

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
    """Tests the weights of the train net by an Evaluator for each test net; there are none if the solver does not test.
    goals: what their outputs decide."""

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
        """config: counts in iterations. options: of the nets. make_feeder: makes what feeds them, as Feeder does.
        Raises ConfigErrors, DataError."""
        self._param = param = config.message
        batches = sum(train_feeder.ring_bytes().values())  # which training takes later
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
        """Of all nets."""
        return [evaluator.feeder for evaluator in self.evaluators]

    @property
    def samples(self) -> list[int]:
        """How many samples each net has read: where in its data the next test begins."""
        return [evaluator.samples for evaluator in self.evaluators]

    @samples.setter
    def samples(self, samples: Sequence[int]) -> None:
        """Of a snapshot, perhaps, whose solver had other test nets."""
        self._last = -1, []
        for evaluator, count in zip(self.evaluators, samples, strict=False):
            evaluator.samples = count

    def samples_to_save(self, iteration: int) -> list[int]:
        """Where the tests of a run begin that goes on after `iteration`: it repeats the test of that."""
        at, before = self._last
        return before if at == iteration else self.samples

    def is_due(self, iteration: int, calendar: Calendar) -> bool:
        """Whether there is a test before the iteration that follows on so many."""
        param = self._param
        if not self.evaluators or not calendar.is_due(iteration, param.test_interval, param.test_epoch):
            return False
        return iteration > 0 or param.test_initialization

    def run(
        self, iteration: int, average: WeightAverage | None, model_parallel: ModelParallel, stop: Callable[[], bool]
    ) -> list[TestRecord]:
        """Collective. Tests each net that has something to test, on the weights or their average, if there is one; the
        log has its outputs at once. stop(): asked before each batch, whether to break off. Raises TestInterrupted on
        all ranks where one of them was told to: the next test begins where this one did."""
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
        """Collective. Whether the best weights that the state knows of are still there; else it forgets them."""
        best = self.goals.best
        if state.best_iteration is None or (best and snapshots.find_best(state.best_iteration)):
            return
        if best:
            log(f"The best weights, of iteration {state.best_iteration}, are not there: the next test is the best")
        state.best_value = state.best_iteration = state.best_goal = None

    def close(self) -> None:
        """Ends data threads, closes data sources."""
        for evaluator in self.evaluators:
            evaluator.close()
