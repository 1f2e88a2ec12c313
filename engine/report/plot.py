"""Draws the curve of a run over its iterations: training and test loss, the test's other outputs, the learning rate."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError
from engine.files import atomic_write, reason
from engine.report.log import log, warn
from engine.report.metrics import elements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
TRAIN_LOSS, RATE = "train loss", "learning rate"
VISIBLE = 0.003  # the least change of a learning rate that can be seen, as a fraction of it
MOST_NAMES = 3  # test outputs that an axis names
MARKERS = "os^DvPX*"
Row = tuple[bool, str, int, float]  # whether it is a loss, name, iteration, value


@dataclass
class Series:
    """One line of a panel."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    marked: bool = False  # draw points, too, and dash the line between them
    steps: bool = False  # a value holds until the next one
    run: int | None = None  # the number of the run, which gives the colour; None: the line has a colour of its own

    def finite(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if np.isfinite(y)]


@dataclass
class Panel:
    """One diagram of a picture. A picture has panels above each other, over the same iterations."""

    title: str  # of the vertical axis
    series: list[Series]


class CurvePoints:
    """What a run has shown so far. The observer Curve fills it on each rank, or plot_log from a log."""

    def __init__(self, title: str, smoothed: int = 1, run: int = 0):
        """Begins without points.

        Args:
            title: of the picture.
            smoothed: number of iterations that a train loss is the mean of; 1 if it is not known.
            run: number of the run in a picture of several.
        """
        self.title, self._smoothed, self._run = title, smoothed, run
        self._loss = Series(TRAIN_LOSS, run=run)
        self._rate = Series(RATE, steps=True, run=run)
        self._tests: dict[str, Series] = {}
        self._losses: set[str] = set()
        self.fresh: list[Row] = []  # new rows; who has written them empties it

    def _add(self, series: Series, iteration: int, value: float) -> None:
        series.points.append((iteration, value))
        self.fresh.append(self._row(series, iteration, value))

    def _row(self, series: Series, iteration: int, value: float) -> Row:
        return (series is self._loss or series.name in self._losses, series.name, iteration, value)

    def train(self, iteration: int, loss: float, rate: float | None = None) -> None:
        self._add(self._loss, iteration, loss)
        if rate is not None:
            self.rate(iteration, rate)

    def rate(self, iteration: int, rate: float) -> None:
        """Adds a learning rate, unless it cannot be told from the one before."""
        if not self._rate.points or not abs(rate - self._rate.points[-1][1]) <= VISIBLE * abs(rate):
            self._add(self._rate, iteration, rate)

    def test(
        self, iteration: int, values: Mapping[str, np.ndarray], losses: Collection[str] = (), net: int = 0
    ) -> None:
        """Adds the outputs of a test.

        Args:
            values: as from Evaluator.run().
            losses: the names of those that are losses.
            net: the number of the test net.
        """
        counts = {name: np.size(value) for name, value in values.items()}
        seen: dict[str, int] = {}
        for name, value in elements(values):
            element = seen[name] = seen.get(name, -1) + 1
            label = f"test{f' #{net}' if net else ''} {name}" + (f"[{element}]" if counts[name] > 1 else "")
            self._add(self._test_series(label, name in losses), iteration, value)

    def _test_series(self, label: str, is_loss: bool) -> Series:
        if is_loss:
            self._losses.add(label)
        return self._tests.setdefault(label, Series(label, marked=True, run=self._run))

    def panels(self) -> list[Panel]:
        """Returns the panels that have something to show."""
        losses = [series for name, series in self._tests.items() if name in self._losses]
        others = [series for name, series in self._tests.items() if name not in self._losses]
        names = list(dict.fromkeys(series.name for series in others))
        test = ", ".join(names) if len(names) <= MOST_NAMES else "test"
        rate = replace(self._rate, points=list(self._rate.points))
        end = max((points[-1][0] for series in (self._loss, *losses, *others) if (points := series.points)), default=0)
        if rate.points and rate.points[-1][0] < end:  # the last rate holds up to where the run is
            rate.points.append((end, rate.points[-1][1]))
        mean = f" (mean of {self._smoothed})" if self._smoothed > 1 else ""
        loss = replace(self._loss, name=f"{self._loss.name}{mean}")
        panels = [Panel("loss", [loss, *losses]), Panel(test, others), Panel("learning rate", [rate])]
        for panel in panels:
            panel.series = [series for series in panel.series if series.finite()]
        return [panel for panel in panels if panel.series]

    def take(self, rows: Iterable[Row]) -> None:
        """Adds rows that an earlier start of this run has written."""
        for is_loss, name, iteration, value in rows:
            own = {TRAIN_LOSS: self._loss, RATE: self._rate}.get(name)
            self._add(own or self._test_series(name, is_loss), iteration, value)

    def rows(self) -> list[Row]:
        """Returns all rows, as they were `fresh` once."""
        every = (self._loss, self._rate, *self._tests.values())
        return [self._row(series, int(at), value) for series in every for at, value in series.points]

    def cut(self, iteration: int) -> None:
        """Forgets what came at this iteration or later: the run goes on from there."""
        for series in (self._loss, self._rate, *self._tests.values()):
            series.points = [point for point in series.points if point[0] < iteration]
        self.fresh = [row for row in self.fresh if row[2] < iteration]


def write_curve(history: CurvePoints, prefix: str) -> None:
    """Writes <prefix>_curve.png and logs its name; warns if it cannot be drawn, for no run fails by that."""
    panels, path = history.panels(), f"{prefix}_curve.png"
    if not panels:
        return
    try:
        write_panels(path, history.title, panels)
    except EngineError as error:
        warn(f"The curve is left out: {error}")
    else:
        log(f"Curve in {path}")


def write_panels(path: str, title: str, panels: list[Panel]) -> None:
    """Writes panels above each other. See write_picture() for errors."""
    write_picture(path, (9, 2.9 * len(panels) + 0.4), lambda figure: _draw(figure, title, panels))


def write_picture(path: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Writes a picture.

    Args:
        path: its suffix is one of the KINDS.
        size: width and height in inches.
        draw: is called with the figure to draw into.

    Raises:
        EngineError: path has another suffix, matplotlib is not installed or fails, or the file cannot be written.
    """
    suffix = Path(path).suffix
    if suffix not in KINDS:
        raise EngineError(f"cannot draw '{suffix or 'a name without a suffix'}'; known: {', '.join(KINDS)}", path)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of the cache of fonts that it is building
    try:
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError:
            raise EngineError("drawing needs matplotlib: pip install prototxt-engine[plot]", path) from None
        # Names are no formulas, and an SVG holds them as text.
        with rc_context({"text.parse_math": False, "svg.fonttype": "none"}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name in a script that no font has
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            with atomic_write(path) as file:
                figure.savefig(file, format=suffix[1:], dpi=110)
    except EngineError:
        raise
    except Exception as error:  # of any type: matplotlib reads settings and a cache of fonts of this host
        raise EngineError(f"cannot be drawn: {type(error).__name__}: {reason(error)}", path) from None


def _draw(figure: Figure, title: str, panels: list[Panel]) -> None:
    figure.suptitle(title)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        markers: Counter[int | None] = Counter()  # of each run so far
        for series in panel.series:
            x, y = zip(*series.finite(), strict=True)
            style: dict[str, Any] = {} if series.run is None else {"color": f"C{series.run % 10}"}
            if series.marked:
                style |= {"marker": MARKERS[markers[series.run] % len(MARKERS)], "markersize": 4, "linestyle": "--"}
                markers[series.run] += 1
            shape = "steps-post" if series.steps else "default"
            axis.plot(x, y, label=series.name, linewidth=1.4, drawstyle=shape, **style)
        axis.set_ylabel(panel.title)
        axis.grid(True, alpha=0.3)
        axis.legend(loc="best", fontsize="small")
    axes[-1].set_xlabel("iteration")
