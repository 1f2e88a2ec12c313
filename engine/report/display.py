"""Prints what a run shows while it trains: Caffe's lines, which parse_log reads, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.report.log import log
from engine.report.metrics import output_lines
from engine.report.observer import Observer, Run, StepRecord
from engine.report.progress import Progress
from engine.report.step_times import StepTimes
from engine.report.table import duration


class Display(Observer):
    """Logs the iterations that are `due`."""

    def __init__(self, due: Callable[[int], bool]):
        self._due = due
        self._times = StepTimes()

    def begin(self, run: Run) -> None:
        self._world = run.world if run.in_step else None
        self._shown = time.monotonic(), run.first  # when the last lines came, and at which iteration
        self._begun, self._last = time.monotonic(), run.last
        self._counted_from = self._shown  # what the speed is the mean since

    def wants_figures(self, iteration: int) -> bool:
        return self._due(iteration)

    def step(self, record: StepRecord) -> None:
        self._times.add(record.end - record.begin, record.waited_data, record.waited_ranks)
        if record.figures is None or not self.wants_figures(record.iteration):
            return
        number, figures = record.iteration, record.figures
        now, (before, since) = time.monotonic(), self._shown
        self._shown = now, number
        count, elapsed = number - since, now - before
        speed = f" ({count / elapsed:.6g} iter/s, {elapsed:.6g}s/{count} iters)" if count else ""
        log(f"Iteration {number}{speed}, loss = {figures.loss:.6g}")
        for line in output_lines("Train", figures.outputs, figures.loss_weights):
            log(line)
        log(f"Iteration {number}, lr = {record.rate:.6g}")
        line = self._times.line(self._world)
        if line:
            log(f"    {line}")
            log(f"    {self._times_left(now, number + 1)}")

    def gone_back(self, iteration: int) -> None:
        self._times = StepTimes()
        self._shown = self._counted_from = time.monotonic(), iteration

    def _times_left(self, now: float, done: int) -> str:
        begin, first = self._counted_from
        left = (now - begin) * (self._last - done) / (done - first)
        return f"{duration(now - self._begun)} have passed" + (f", {duration(left)} are left" if left > 0 else "")


class TrainingBar(Observer):
    """Draws a progress bar on a terminal. Elsewhere it draws nothing: the lines of Display tell the same."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def begin(self, run: Run) -> None:
        self._last = run.last
        self._draw(run.first)

    def _draw(self, begin: int) -> None:
        self._bar = Progress("Training", self._last, begin=begin)

    def gone_back(self, iteration: int) -> None:
        self.close()
        self._draw(iteration)  # if rank 0 has died, on the terminal of the rank that logs in its place

    def step(self, record: StepRecord) -> None:
        if self._bar:
            self._bar.update(record.iteration + 1, note=f"loss = {record.loss:.4g}")

    def close(self) -> None:
        if self._bar:
            self._bar.close()
