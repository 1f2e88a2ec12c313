"""`engine parse_log`: turns a log of engine or Caffe (glog's format) into rows and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, chain
from pathlib import Path

from engine.errors import DataError
from engine.files import atomic_write, opened

_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|nan|inf))"
_COUNT = "[0-9]{1,18}"
_MOST_NETS = 1000  # test nets
_MOST_EMPTY = 1_000_000  # fields without a value in a table: a log of several runs may have other outputs for each
_STAMP = re.compile(r"[IWEF](\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})", re.ASCII)
_OF_RANK = re.compile(r"^(\[\d{1,9}\] ?| *\d{1,9}: )", re.ASCII)  # mpiexec -l and srun -l write it before each line
_STAGE = re.compile(rf"\] Stage ({_COUNT}) of {_COUNT}: ")  # of several solvers in a row
_ITERATION = re.compile(rf"\bIteration ({_COUNT})\b")
_TESTING = re.compile(rf"\bTesting net \(#({_COUNT})\)")
_LOSS = re.compile(rf"\bIteration {_COUNT}(?: \([^)\n]{{0,200}}\))?, loss = {_NUMBER}")
_RATE = re.compile(rf"\bIteration {_COUNT}, lr = {_NUMBER}")
_OUTPUT = re.compile(rf"\b(Train|Test) net output #{_COUNT}: (\S+) = {_NUMBER}(.*)")


@dataclass
class Row:
    """One display, or one test."""

    iteration: int
    seconds: float  # since the run, or its stage, began
    rate: float | None = None  # None if the log has none
    loss: float | None = None  # smoothed; None if the log has none
    outputs: dict[str, float] = field(default_factory=dict)
    stage: int = 0  # its number, where several solvers run in a row; else 0
    _elements: Counter[str] = field(default_factory=Counter)  # how many each output has so far

    def add(self, name: str, value: float) -> None:
        """Adds an element of an output. Several of one output are numbered: accuracy, accuracy[1], ..."""
        number = self._elements[name]
        self.outputs[f"{name}[{number}]" if number else name] = value
        self._elements[name] += 1


@dataclass
class RunLog:
    """What the log of a run tells."""

    train: list[Row] = field(default_factory=list)
    tests: dict[int, list[Row]] = field(default_factory=dict)  # by number of the test net
    losses: set[str] = field(default_factory=set)  # names of outputs that are losses

    def stages(self) -> dict[int, RunLog]:
        """Returns the rows of each stage by its number, each of which counts its iterations from 0."""
        found: dict[int, RunLog] = {}
        for row in self.train:
            found.setdefault(row.stage, RunLog(losses=self.losses)).train.append(row)
        for test, rows in self.tests.items():
            for row in rows:
                found.setdefault(row.stage, RunLog(losses=self.losses)).tests.setdefault(test, []).append(row)
        return found


class _Clock:
    """Counts the seconds since the line that says Solving, or since the first line. glog's dates have no year: where
    they go back by months, a new year has begun."""

    def __init__(self) -> None:
        self.begin: datetime | None = None
        self.now: datetime | None = None
        self._years = 0

    def read(self, line: str) -> None:
        found = _STAMP.match(line)
        if not found:
            return
        year, month, day, *time = (int(digits or 0) for digits in found.groups())
        hour, minute, second, microsecond = time
        try:
            now = datetime(year or 2000 + 4 * self._years, month, day, hour, minute, second, microsecond)
            if self.now and (self.now - now).days > 180 and not year:
                self._years += 1
                now = now.replace(year=2000 + 4 * self._years)
        except ValueError:  # the digits are no time
            return
        self.now = now
        if self.begin is None or " Solving " in line:
            self.begin = now

    @property
    def seconds(self) -> float:
        if self.now is None or self.begin is None:
            return math.nan
        years = self.now.year - self.begin.year
        passed = (self.now - self.begin).total_seconds()
        return passed - 86400 * 1095 * (years // 4) if self._years else passed


def read_log(path: str) -> RunLog:
    """Reads a log. Raises DataError if it cannot be read, or has no iterations."""
    with opened(path, DataError) as file:
        run = parse(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))
    if not run.train and not run.tests:
        raise DataError("no log of a training run: it has no line 'Iteration N, ...'", path)
    if len(run.tests) > _MOST_NETS:
        raise DataError(f"it tests {len(run.tests)} nets, expected at most {_MOST_NETS}", path)
    return run


def parse(lines: Iterable[str]) -> RunLog:
    """Returns what a log's lines tell, with rows in the order of the log."""
    run, clock = RunLog(), _Clock()
    iteration, test, stage = -1, 0, 0
    for line in lines:
        line = _OF_RANK.sub("", line, count=1)
        clock.read(line)
        if found := _STAGE.search(line):
            iteration, stage = -1, int(found[1])
        elif found := _ITERATION.search(line):
            iteration = int(found[1])
            if found := _TESTING.search(line):
                test = int(found[1])
                run.tests.setdefault(test, []).append(Row(iteration, clock.seconds, stage=stage))
            if found := _LOSS.search(line):
                _train_row(run, iteration, stage, clock).loss = float(found[1])
            if found := _RATE.search(line):
                _train_row(run, iteration, stage, clock).rate = float(found[1])
        elif (found := _OUTPUT.search(line)) and iteration >= 0:
            kind, name, value, rest = found.groups()
            if kind == "Train" or run.tests.get(test):
                row = _train_row(run, iteration, stage, clock) if kind == "Train" else run.tests[test][-1]
                row.add(name, float(value))
            if "loss)" in rest:
                run.losses.add(name)
    _rates_of_tests(run)
    return run


def _train_row(run: RunLog, iteration: int, stage: int, clock: _Clock) -> Row:
    """Returns the row of a display, a new one if it is the iteration's first line."""
    if not run.train or (run.train[-1].stage, run.train[-1].iteration) != (stage, iteration):
        run.train.append(Row(iteration, clock.seconds, stage=stage))
    return run.train[-1]


def _rates_of_tests(run: RunLog) -> None:
    """Gives each test the rate of the last display up to its iteration; of the first display, if none came before."""
    known = [row for row in run.train if row.rate is not None]
    # The least iteration from each display on, for a log of several runs may begin again.
    least = list(accumulate((row.iteration for row in reversed(known)), min))[::-1]
    for row in chain.from_iterable(run.tests.values()):
        before = bisect_right(least, row.iteration)
        row.rate = known[max(before - 1, 0)].rate if known else None


def write_csv(path: str, folder: str, delimiter: str = ",") -> list[Path]:
    """Writes <folder>/<log>.train and .test (.test1, ... for further test nets).

    They have Caffe's columns, the smoothed loss, and the number of the stage where several solvers were trained in a
    row. Returns the files. Raises DataError if the log cannot be read, EngineError if a file cannot be written."""
    run = read_log(path)
    tables = {".train": run.train} if run.train else {}
    tables |= {f".test{number or ''}": rows for number, rows in run.tests.items()}
    written = []
    for suffix, rows in tables.items():
        target = Path(folder) / (Path(path).name + suffix)
        with atomic_write(target) as file:
            file.write(_csv(path, rows, delimiter, smoothed=suffix == ".train").encode())
        written.append(target)
    return written


def _csv(path: str, rows: list[Row], delimiter: str, smoothed: bool) -> str:
    outputs = list(dict.fromkeys(name for row in rows for name in row.outputs))
    empty = len(rows) * len(outputs) - sum(len(row.outputs) for row in rows)
    if empty > _MOST_EMPTY:
        raise DataError(
            f"a table of {len(rows)} rows and {len(outputs)} outputs would be nearly empty: each has others", path
        )
    more = (["SmoothedLoss"] if smoothed else []) + (["Stage"] if any(row.stage for row in rows) else [])
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["NumIters", "Seconds", "LearningRate", *outputs, *more])
    for row in rows:
        values = [row.rate, *(row.outputs.get(name) for name in outputs), *([row.loss] if smoothed else [])]
        cells = ["" if value is None else f"{value:.9g}" for value in values]
        cells += [str(row.stage)] if "Stage" in more else []
        writer.writerow([row.iteration, f"{row.seconds:.6f}", *cells])
    return text.getvalue()
