"""`engine plot_log`: draws the curves of one run or several from their logs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.errors import ConfigError, DataError
from engine.report.parse_log import RunLog, read_log
from engine.report.plot import KINDS, CurvePoints, Panel, write_panels

_MOST_CURVES = 1000  # more would take long to draw, and nobody could tell them apart


def plot_logs(paths: Sequence[str], target: str) -> None:
    """Draws logs into one picture, a .png, .svg or .pdf. Raises ConfigError if the target is not a picture's name,
    DataError if a log cannot be read or there is nothing to draw, EngineError if the picture cannot be written."""
    if Path(target).suffix not in KINDS or _is_log(target):
        logs = [path for path in dict.fromkeys([target, *paths]) if _is_log(path)]
        picture = next((path for path in paths if path not in logs and Path(path).suffix in KINDS), "curve.png")
        raise ConfigError(
            f"expected the picture to write, {', '.join(KINDS[:-1])} or {KINDS[-1]}, before the logs: "
            f"{shlex.join(['engine', 'plot_log', picture, *(logs or ['LOG'])])}",
            target,
        )
    names = _names(paths)
    panels: dict[str, Panel] = {}
    runs = [
        (_label(names, name, stage), run)
        for path, name in zip(paths, names, strict=True)
        for stage, run in read_log(path).stages().items()
    ]
    _check_count(len(runs), paths)  # each has a curve: before they are made
    for number, (label, run) in enumerate(runs):
        for panel in _history(run, number).panels():
            for series in panel.series:
                if label:
                    series.name = f"{label}: {series.name}"
            panels.setdefault(panel.title, Panel(panel.title, [])).series.extend(panel.series)
    _check_count(sum(len(panel.series) for panel in panels.values()), paths)
    if not panels:
        raise DataError("nothing to draw: no loss, no test", ", ".join(paths))
    write_panels(target, ", ".join(names), list(panels.values()))


def _is_log(path: str) -> bool:
    """Returns whether a file is the log of a run."""
    try:
        read_log(path)
    except DataError:
        return False
    return True


def _names(paths: Sequence[str]) -> list[str]:
    """Returns the names of files, or their paths if two have the same name."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def _check_count(curves: int, paths: Sequence[str]) -> None:
    """Raises DataError if there are so many curves in these logs, or more, that nobody tells them apart."""
    if curves > _MOST_CURVES:
        raise DataError(f"{curves} curves, expected at most {_MOST_CURVES}", ", ".join(paths))


def _label(names: Sequence[str], name: str, stage: int) -> str:
    """Returns what stands before the names of a run's curves: what tells it from others in the picture."""
    return ", ".join([*([name] if len(names) > 1 else []), *([f"stage {stage}"] if stage else [])])


def _history(run: RunLog, number: int) -> CurvePoints:
    history = CurvePoints("", run=number)
    for row in run.train:
        history.train(row.iteration, math.nan if row.loss is None else row.loss, row.rate)
    for number, rows in run.tests.items():
        for row in rows:
            history.test(row.iteration, {name: np.array([v]) for name, v in row.outputs.items()}, run.losses, number)
    return history
