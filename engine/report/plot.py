"""The curve of a run: training and test loss, the test's other figures, the learning rate, over the iterations."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError
from engine.files import atomic_write
from engine.report.log import log, warn
from engine.report.metrics import elements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")


@dataclass
class Series:
    """One line of a panel; `marked` draws its points, too."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    marked: bool = False

    def finite(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if np.isfinite(y)]


@dataclass
class Panel:
    title: str
    series: list[Series]


class CurvePoints:
    """What a run has shown so far; filled by the solver on rank 0."""

    def __init__(self, title: str):
        self.title = title
        self._loss = Series("train loss (smoothed)")
        self._rate = Series("learning rate")
        self._tests: dict[str, Series] = {}
        self._losses: set[str] = set()

    def train(self, iteration: int, loss: float, rate: float) -> None:
        self._loss.points.append((iteration, loss))
        self._rate.points.append((iteration, rate))

    def test(
        self, iteration: int, values: Mapping[str, np.ndarray], losses: Collection[str] = (), net: int = 0
    ) -> None:
        """values: what Evaluator.run() returns; losses: the names of those that are losses."""
        counts = {name: np.size(value) for name, value in values.items()}
        seen: dict[str, int] = {}
        for name, value in elements(values):
            element = seen[name] = seen.get(name, -1) + 1
            label = f"test{f' #{net}' if net else ''} {name}" + (f"[{element}]" if counts[name] > 1 else "")
            self._tests.setdefault(label, Series(label, marked=True)).points.append((iteration, value))
            if name in losses:
                self._losses.add(label)

    def panels(self) -> list[Panel]:
        """Those that have something to show."""
        losses = [series for name, series in self._tests.items() if name in self._losses]
        others = [series for name, series in self._tests.items() if name not in self._losses]
        panels = [Panel("loss", [self._loss, *losses]), Panel("test", others), Panel("learning rate", [self._rate])]
        for panel in panels:
            panel.series = [series for series in panel.series if series.finite()]
        return [panel for panel in panels if panel.series]


def write_curve(history: CurvePoints, prefix: str) -> None:
    """Writes <prefix>_curve.png and logs its name, or why there is none: no run fails because it cannot be drawn."""
    panels, path = history.panels(), f"{prefix}_curve.png"
    if not panels:
        return
    try:
        write_panels(path, history.title, panels)
    except EngineError as error:
        warn(f"The curve is left out: {error}")
    except Exception as error:  # whatever matplotlib, its settings or its cache of fonts come up with
        warn(f"The curve is left out: {type(error).__name__}: {error}")
    else:
        log(f"Curve in {path}")


def write_panels(path: str, title: str, panels: list[Panel]) -> None:
    """Writes a picture of one of the KINDS, as path's suffix says.

    Raises:
        EngineError: path has another suffix, matplotlib is not installed, or the file cannot be written.
    """
    suffix = Path(path).suffix
    if suffix not in KINDS:
        raise EngineError(f"cannot draw '{suffix or 'a name without a suffix'}'; known: {', '.join(KINDS)}", path)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of the cache of fonts that it is building
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise EngineError("drawing needs matplotlib: pip install engine[plot]", path) from None

    # Names are no formulas, and an SVG holds them as text.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that no font has
        figure = Figure(figsize=(9, 2.9 * len(panels) + 0.4), layout="constrained")
        _draw(figure, title, panels)
        with atomic_write(path) as file:
            figure.savefig(file, format=suffix[1:], dpi=110)


def _draw(figure: Figure, title: str, panels: list[Panel]) -> None:
    figure.suptitle(title)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        for series in panel.series:
            x, y = zip(*series.finite(), strict=True)
            axis.plot(x, y, label=series.name, linewidth=1.4, marker="o" if series.marked else None, markersize=3)
        axis.set_ylabel(panel.title)
        axis.grid(True, alpha=0.3)
        axis.legend(loc="best", fontsize="small")
    axes[-1].set_xlabel("iteration")
