"""Logs at the end of a run how long it took, how fast it was, and which test was the best."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from engine.files import is_regular
from engine.report.log import log
from engine.report.observer import Observer, Run, StepRecord, TestRecord
from engine.report.table import duration


class Summary(Observer):
    """Finds the best test by the output that snapshot_best names. Without it, by the first output of the first test net
    that is no loss (the highest is best), or by its first loss (the lowest is best)."""

    def begin(self, run: Run) -> None:
        self._begin, self._first, self._last = time.monotonic(), run.first, run.first
        self._end = self._begin  # of the last step, test or snapshot: drawing the curve does not count
        self._samples = self._per_iteration = 0
        self._in_step = run.in_step
        self._bests: list[tuple[float, int, str]] = []  # value, iteration, name; each better than the one before
        self._sign = 1
        self._asked, self._prefix = run.best, run.prefix
        if run.best and run.best.value is not None and run.best.iteration is not None:
            self._bests, self._sign = [(run.best.value, run.best.iteration, run.best.output)], run.best.sign
        self._saved: dict[str, int] = {}  # weights -> iteration

    def step(self, record: StepRecord) -> None:
        self._last, self._samples = record.iteration + 1, self._samples + record.samples
        self._end = time.monotonic()
        self._per_iteration = record.samples

    def finished(self, iteration: int, loss: float) -> None:
        if not self._in_step:  # step() tells of this rank's iterations only: count those of all ranks
            self._last, self._samples = iteration, (iteration - self._first) * self._per_iteration

    def test(self, record: TestRecord) -> None:
        self._end = time.monotonic()
        if self._asked:
            if record.index != self._asked.index:
                return
            name, self._sign = self._asked.output, self._asked.sign
        elif record.index > 0 or not record.outputs:
            return
        else:
            figures = [name for name in record.outputs if name not in record.loss_weights]
            name = figures[0] if figures else next(iter(record.outputs))
            self._sign = 1 if figures else -1
        value = float(np.ravel(record.outputs[name])[0])
        if not np.isnan(value) and (not self._bests or self._sign * value > self._sign * self._bests[-1][0]):
            self._bests.append((value, record.iteration, name))

    def gone_back(self, iteration: int) -> None:
        self._bests = [best for best in self._bests if best[1] < iteration]  # later iterations are tested again

    def saved(self, iteration: int, path: str) -> None:
        self._saved[path] = iteration
        self._end = time.monotonic()

    def removed(self, path: str) -> None:
        self._saved.pop(path, None)

    def _saved_before(self, iteration: int) -> str | None:
        """Returns the file of weights that an earlier start of this run saved at an iteration; None if there is none,
        or if the iteration is not before this start: such a file may be another run's."""
        if not 0 < iteration <= self._first:
            return None
        stems = (f"{self._prefix}_iter_{iteration}{kind}.caffemodel" for kind in ("_best", ""))
        return next((path for stem in stems for path in (stem, f"{stem}.h5") if is_regular(Path(path))), None)

    def end(self, trace) -> None:
        seconds, count = self._end - self._begin, self._last - self._first
        if count:
            rates = f"{count / seconds:.4g} iterations/s, {self._samples / seconds:.4g} samples/s"
            log(f"Trained iterations {self._first} to {self._last} in {duration(seconds)}, with tests and all: {rates}")
        if self._bests:
            value, iteration, name = self._bests[-1]
            path = next((path for path, at in reversed(self._saved.items()) if at == iteration), None)
            path = path or self._saved_before(iteration)
            advice = "" if self._asked else f': snapshot_best: "{name}" in the solver keeps it'
            where = f"saved in {path}" if path else f"not saved{advice}"
            log(f"Best test: {name} = {value:.6g} at iteration {iteration} ({where})")
