"""The curve of a run, a picture beside its snapshots."""

from __future__ import annotations

from collections.abc import Callable

from engine.report import plot
from engine.report.observer import Observer, Run, StepRecord, TestRecord


class Curve(Observer):
    """A point of loss and rate for iterations that are `due`, and one for each test; rank 0 draws them at the end."""

    def __init__(self, due: Callable[[int], bool]):
        self._due = due

    def begin(self, run: Run) -> None:
        self._run = run
        self._points = plot.CurvePoints(run.net.name)

    def wants_figures(self, iteration: int) -> bool:
        return self._due(iteration)

    def step(self, record: StepRecord) -> None:
        if record.figures is not None and self.wants_figures(record.iteration):
            self._points.train(record.iteration, record.figures.loss, record.rate)

    def test(self, record: TestRecord) -> None:
        self._points.test(record.iteration, record.outputs, record.loss_weights, record.index)

    def end(self, trace) -> None:
        if self._run.world.rank == 0 and self._run.prefix:
            plot.write_curve(self._points, self._run.prefix)
