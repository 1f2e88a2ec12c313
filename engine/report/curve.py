"""The curve of a run, a picture beside its snapshots."""

from __future__ import annotations

from engine.report import plot
from engine.report.observer import Observer, Run, StepRecord, TestRecord


class Curve(Observer):
    """Every `interval` iterations a point of loss and rate, and one for each test; rank 0 draws them at the end."""

    def __init__(self, interval: int):
        self._interval = interval

    def begin(self, run: Run) -> None:
        self._run = run
        self._points = plot.CurvePoints(run.net.name)

    def wants_figures(self, iteration: int) -> bool:
        return bool(self._interval) and iteration % self._interval == 0

    def step(self, record: StepRecord) -> None:
        if record.figures is not None and self.wants_figures(record.iteration):
            self._points.train(record.iteration, record.figures.loss, record.rate)

    def test(self, record: TestRecord) -> None:
        self._points.test(record.iteration, record.outputs, record.loss_weights, record.index)

    def end(self, trace) -> None:
        if self._run.world.rank == 0 and self._run.prefix:
            plot.write_curve(self._points, self._run.prefix)
