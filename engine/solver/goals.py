"""What the outputs of tests decide in a run: which weights are the best so far (`snapshot_best`), and when to stop
because nothing is gained any more (`early_stopping`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.config import SolverConfig, nets_of_solver
from engine.config.suggestions import suggestion
from engine.data.source_shapes import SourceShapes
from engine.errors import Complaint, ConfigError
from engine.graph.build import build
from engine.inference.detectors import detectors_of
from engine.report.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.graph.graph import Graph
    from engine.report.observer import TestRecord
    from engine.solver.state import GoalsState


class Goal:
    """An output of a test net that is to become as high, or as low, as it can. str() is its name in snapshots.

    field: the solver's field that names the output. index: of the first test net that has it and is tested.
    """

    def __init__(
        self, field: str, output: str, best_is: int | None, tested: Sequence[Graph], left_out: Collection[int]
    ):
        """best_is: LOWEST, HIGHEST, or None: then losses are best at their lowest, other outputs at their highest.
        tested: the test nets. left_out: the indices of those with a test_iter of 0. Raises ConfigError, without a
        place, if none of the others has the output, or if it has several values."""
        self.field, self.output = field, output
        outputs = [[blob.name for blob in graph.outputs] for graph in tested]
        having = [index for index, names in enumerate(outputs) if output in names]
        if not having:
            known = list(dict.fromkeys(name for names in outputs for name in names))
            raise ConfigError(f"{field}: no test net has an output '{output}'{suggestion(output, known)}")
        usable = [index for index in having if index not in left_out]
        if not usable:
            raise ConfigError(f"{field}: output '{output}' is of test net #{having[0]}, whose test_iter is 0")
        self.index = usable[0]
        count = _least_values(tested[self.index], output)
        if count > 1:
            raise ConfigError(f"{field}: output '{output}' has {count} values, a goal is one number")
        layers = tested[self.index].layers
        losses = {top.name for layer in layers for top, weight in zip(layer.tops, layer.loss_weights) if weight}
        self.sign = -1 if (output in losses if best_is is None else best_is == proto.LOWEST) else 1

    def __str__(self) -> str:
        return f"{'highest' if self.sign > 0 else 'lowest'} {self.output} of test net #{self.index}"

    def value(self, records: Sequence[TestRecord]) -> float:
        """Returns the goal's value in a test of all nets. Raises ConfigError if the output has several values."""
        record = next(each for each in records if each.index == self.index)
        found = np.ravel(record.outputs[self.output])
        if found.size != 1:
            raise ConfigError(f"{self.field}: output '{self.output}' has {found.size} values, a goal is one number")
        return float(found[0])

    def gains(self, value: float, best: float | None, by: float = 0.0) -> bool:
        """Tells whether a value is better, by more than `by`, than the best so far. NaN is never better."""
        return not np.isnan(value) and (best is None or self.sign * (value - best) > by)


def _is_another(goal: Goal | None, before: str | None) -> bool:
    """Tells whether a snapshot's values are of another goal than this run's, and logs it if they are."""
    if goal is None or before in (None, str(goal)):  # an old state does not name its goal
        return False
    log(f"{goal.field} goes by the {goal}, and the snapshot by the {before}: what is best is sought anew")
    return True


def _least_values(graph: Graph, output: str) -> int:
    """Returns how many values an output has at least in a test: one that has a value for each sample of a batch may be
    averaged over them."""
    shape = next(blob.shape for blob in graph.outputs if blob.name == output)
    if output in detectors_of(graph):
        return 1
    return math.prod(shape[1:] if shape[:1] == (graph.batch_size,) else shape)


class Goals:
    """Judges a solver's tests. All ranks come to the same decision, since a test's outputs are the same bits on all."""

    def __init__(
        self,
        param: proto.SolverParameter,
        tested: Sequence[Graph],
        place: Callable[[str], str | None] = lambda field: None,
    ):
        """tested: the test nets. Raises ConfigError, with the field's place, if none of them has a named output."""
        self._place = place
        self.best = self._goal("snapshot_best", param, tested)
        self.stopping = self._goal("early_stopping", param, tested)
        self._patience, self._min_delta = param.early_stopping.patience, param.early_stopping.min_delta

    def _goal(self, field: str, param: proto.SolverParameter, tested: Sequence[Graph]) -> Goal | None:
        asked = wanted(param, field)
        if not asked or not asked[0]:
            return None
        try:
            left_out = [index for index, count in enumerate(param.test_iter) if count == 0]
            return Goal(field, *asked, tested, left_out)
        except ConfigError as error:
            raise ConfigError(str(error), self._place(field)) from None

    def take_up(self, state: GoalsState) -> None:
        """Takes up a snapshot's state: forgets values of another goal than this run's, which cannot be compared."""
        new_best = _is_another(self.best, state.best_goal)
        if new_best:
            state.best_value = state.best_iteration = state.best_goal = None
        if new_stopping := _is_another(self.stopping, state.stopping_goal):
            state.stopping_value = state.tests_without_gain = state.stopping_goal = None
        # The test of the snapshot's iteration is repeated. It counts for a new goal; early_stopping, if it goes on,
        # must not count it again.
        if new_stopping or (new_best and not self.stopping):
            state.last_judged = None

    def judge(self, state: GoalsState, iteration: int, records: Sequence[TestRecord]) -> bool:
        """Judges a test of all nets. Returns whether its weights are the best so far. A test that a resumed run repeats
        counts once. Raises ConfigError for an output of several values."""
        if state.last_judged == iteration or not (self.best or self.stopping):
            return False
        state.last_judged = iteration
        best = False
        if self.best and self.best.gains(value := self._value(self.best, records), state.best_value):
            state.best_value, state.best_iteration, state.best_goal, best = value, iteration, str(self.best), True
        if self.stopping:
            value, state.stopping_goal = self._value(self.stopping, records), str(self.stopping)
            if self.stopping.gains(value, state.stopping_value, self._min_delta):
                state.stopping_value, state.tests_without_gain = value, 0
            else:
                state.tests_without_gain = (state.tests_without_gain or 0) + 1
        return best

    def _value(self, goal: Goal, records: Sequence[TestRecord]) -> float:
        try:
            return goal.value(records)
        except ConfigError as error:
            raise ConfigError(str(error), self._place(goal.field)) from None

    def is_patience_over(self, state: GoalsState) -> bool:
        """Tells whether early_stopping has seen `patience` tests in a row without a gain."""
        return bool(self.stopping) and (state.tests_without_gain or 0) >= self._patience

    def describe_stop(self, state: GoalsState) -> str:
        """Returns the log's line on why early_stopping ends the run."""
        assert self.stopping
        by = f" by more than {self._min_delta:g}" if self._min_delta else ""
        best = "nothing" if state.stopping_value is None else f"{state.stopping_value:.6g}"
        tests = f"{state.tests_without_gain} test{'s' if state.tests_without_gain != 1 else ''}"
        return f"Early stopping: {tests} without a gain{by}; the best {self.stopping.output} is {best}"


def check_goals(config: SolverConfig) -> None:
    """Raises ConfigError, before a run, if no test net has an output that the solver goes by. Says nothing if a test
    net cannot be built: other checks tell why."""
    param, tested = config.message, []
    if not any(wanted(param, field) for field in ("snapshot_best", "early_stopping")):
        return
    for net in nets_of_solver(config).tests:
        shapes_of = SourceShapes(net.message, proto.TEST, lambda note: None, ranks=config.ranks)
        try:
            tested.append(build(net, proto.TEST, shapes_of=shapes_of))
        except ConfigError:
            return
    if tested:
        Goals(param, tested, config.place)


def wanted(param: proto.SolverParameter, field: str) -> tuple[str, int | None] | None:
    """Returns what a field, snapshot_best or early_stopping, asks for: the output's name, and LOWEST, HIGHEST or None
    if the text does not say which value is best. None if the field is not given."""
    best = param.snapshot_best_is if param.HasField("snapshot_best_is") else None
    if field == "snapshot_best":
        return (param.snapshot_best, best) if param.snapshot_best else None
    if not param.HasField("early_stopping"):
        return None
    asked = param.early_stopping
    if asked.HasField("best_is"):
        best = asked.best_is
    elif asked.output and asked.output != param.snapshot_best:
        best = None
    return asked.output or param.snapshot_best, best


def complaints(param: proto.SolverParameter, tested: bool) -> Iterator[Complaint]:
    """Yields what is wrong with the fields, as far as the solver alone can tell. tested: whether its runs test."""
    asked = param.early_stopping
    if param.HasField("early_stopping"):
        if not (asked.output or param.snapshot_best):
            yield "early_stopping.output", 'early_stopping needs the name of a test output, output: "accuracy"'
        if asked.patience < 1:
            yield (
                "early_stopping.patience",
                f"early_stopping.patience: expected 1 or more tests, got {asked.patience}",
            )
        if not 0 <= asked.min_delta < float("inf"):
            yield (
                "early_stopping.min_delta",
                f"early_stopping.min_delta: expected 0 or more, got {asked.min_delta:g}",
            )
    for field in ("snapshot_best", "early_stopping"):
        if wanted(param, field) and not tested:
            yield field, f"{field} goes by tests, and this solver has none; give test_interval or test_epoch"
    if param.HasField("snapshot_best_is") and not param.snapshot_best:
        yield "snapshot_best_is", "snapshot_best_is is given, but no snapshot_best"
