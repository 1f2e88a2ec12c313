"""The curve of a run, with matplotlib and without."""

import math
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from engine.errors import EngineError
from engine.report.plot import History, write_curve
from engine.report.svg import ticks


def history() -> History:
    run = History("digits")
    for iteration in range(0, 100, 10):
        run.train(iteration, 2.3 * math.exp(-iteration / 30), 0.1 * (1 - iteration / 100))
    for iteration in (0, 50, 100):
        run.test(iteration, {"accuracy": np.array([iteration / 100]), "loss": np.array([2.0])}, {"loss": 1.0})
    return run


def test_panels_hold_losses_apart_from_other_figures():
    panels = {panel.title: [series.name for series in panel.series] for panel in history().panels()}
    assert panels == {
        "loss": ["train loss (smoothed)", "test loss"],
        "test": ["test accuracy"],
        "learning rate": ["learning rate"],
    }


def test_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = write_curve(history(), f"{tmp_path}/digits")
    assert path.endswith("digits_curve.png")
    assert (tmp_path / "digits_curve.png").read_bytes().startswith(b"\x89PNG")


def test_svg_where_matplotlib_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    path = write_curve(history(), f"{tmp_path}/digits")
    assert path.endswith("digits_curve.svg")
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"digits", "train loss (smoothed)", "test accuracy", "learning rate", "iteration"} <= set(texts)
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 4
    assert all(len(line.get("points").split()) in (3, 10) for line in lines)


def test_nothing_to_draw(tmp_path):
    empty = History("empty")
    empty.train(0, math.nan, 0.1)
    assert [panel.title for panel in empty.panels()] == ["learning rate"]
    assert write_curve(History("empty"), f"{tmp_path}/x") is None


def test_one_point_and_a_constant_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    run = History("short")
    run.train(0, 0.0, 0.1)
    assert ElementTree.parse(write_curve(run, f"{tmp_path}/short")) is not None


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(EngineError, match="cannot be written"):
        write_curve(history(), f"{tmp_path}/none/x")


@pytest.mark.parametrize("low, high", [(0, 1), (-3, 8000), (1e-5, 3e-5), (99.9, 100.1)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high, 6)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
