"""Writes the curve of a run beside its snapshots, as a table and a picture. A resumed run continues its curve."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable

from engine.errors import ConfigError, DataError, EngineError
from engine.files import atomic_write, read_text
from engine.report import plot
from engine.report.log import warn
from engine.report.observer import Observer, Run, StepRecord, TestRecord

HEADER = ["loss", "name", "iteration", "value"]


class Curve(Observer):
    """Records the loss at iterations that are `due`, the outputs of each test, and the learning rate where it changes.

    Rank 0 adds them to <prefix>_curve.csv as they come, and draws the picture at the end. A run that goes on from a
    snapshot begins with the rows of that table from before the snapshot. A run without losses and tests leaves neither
    table nor picture. ENGINE_CURVE=0 leaves the picture out, which takes a second and more: most of the time of a short
    run. Raises ConfigError if it is neither 0 nor 1."""

    def __init__(self, due: Callable[[int], bool]):
        self._due = due
        self._drawn = _drawn()
        self._table, self._begun = "", False  # the path, "" for none; whether this run has written rows
        self._shown = False  # whether there is a loss or a test

    def begin(self, run: Run) -> None:
        self._run = run
        self._points = plot.CurvePoints(run.net.name, run.average_loss)
        self._table = f"{run.prefix}_curve.csv" if run.prefix else ""
        if run.first > 0 and self._table and os.path.exists(self._table):
            self._take_table(run.first)  # on all ranks: another one writes the table when rank 0 has died

    def _take_table(self, first: int) -> None:
        try:
            self._points.take(read_table(self._table))
        except EngineError as error:
            warn(f"The curve begins at iteration {first}: {error}")
        self._points.cut(first)
        self._shown = bool(self._points.rows())

    def wants_figures(self, iteration: int) -> bool:
        return self._due(iteration)

    def step(self, record: StepRecord) -> None:
        self._points.rate(record.iteration, record.rate)
        if record.figures is not None and self.wants_figures(record.iteration):
            self._points.train(record.iteration, record.figures.loss)
            self._shown = True
            self._write()

    def test(self, record: TestRecord) -> None:
        self._points.test(record.iteration, record.outputs, record.loss_weights, record.index)
        self._shown = True
        self._write()

    def gone_back(self, iteration: int) -> None:
        self._points.cut(iteration)
        self._points.fresh, self._begun = self._points.rows(), False

    def finished(self, iteration: int, loss: float) -> None:
        if self._shown:
            self._points.train(iteration, loss)
            self._write()

    def end(self, trace) -> None:
        if self._drawn and self._run.world.rank == 0 and self._run.prefix and self._shown:
            plot.write_curve(self._points, self._run.prefix)

    def _write(self) -> None:
        """Adds the rows to the table that are not in it yet. The first rows replace a table from before."""
        if not self._table or self._run.world.rank != 0:
            return
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if not self._begun:
            rows.writerow(HEADER)
        rows.writerows((int(is_loss), name, at, repr(value)) for is_loss, name, at, value in self._points.fresh)
        try:
            if self._begun:
                with open(self._table, "ab") as file:
                    file.write(text.getvalue().encode())
            else:
                with atomic_write(self._table) as file:
                    file.write(text.getvalue().encode())
        except (EngineError, OSError) as error:
            warn(f"The curve's table ends here: {error}")
            self._table = ""
        self._begun, self._points.fresh = True, []


def read_table(path: str) -> list[plot.Row]:
    """Returns the rows of a table, without a last one that was not written to its end. Raises DataError if the file is
    no such table, or cannot be read."""
    whole, _, _ = read_text(path, DataError).rpartition("\n")
    try:
        rows = list(csv.reader(io.StringIO(whole)))
        if rows[:1] != [HEADER]:
            raise ValueError(f"expected the columns {', '.join(HEADER)}")
        return [(bool(int(is_loss)), name, int(at), float(value)) for is_loss, name, at, value in rows[1:]]
    except (ValueError, csv.Error) as error:
        raise DataError(f"no curve's table: {error}", path) from None


def _drawn() -> bool:
    """Returns whether ENGINE_CURVE asks for the picture. Raises ConfigError."""
    text = os.environ.get("ENGINE_CURVE") or "1"
    if text not in ("0", "1"):
        raise ConfigError(f"ENGINE_CURVE must be 0 (no picture of a run's curve) or 1; got {text!r}")
    return text == "1"
