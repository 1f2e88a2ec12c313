"""The curve of a run, with matplotlib and without."""

import math
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from engine.report.plot import CurvePoints, write_curve, write_panels

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def told(monkeypatch):
    """The messages that write_curve() logs."""
    found: list[str] = []
    monkeypatch.setattr("engine.report.plot.log", found.append)
    monkeypatch.setattr("engine.report.plot.warn", found.append)
    return found


def history() -> CurvePoints:
    run = CurvePoints("digits")
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


def test_picture(tmp_path, told):
    pytest.importorskip("matplotlib")
    write_curve(history(), f"{tmp_path}/digits")
    assert (tmp_path / "digits_curve.png").read_bytes().startswith(b"\x89PNG")
    assert told == [f"Curve in {tmp_path}/digits_curve.png"]


def test_names_are_text_in_an_svg(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    run = history()
    run.test(100, {"日本 $x_^": np.array([1.0])})
    write_panels(f"{tmp_path}/x.svg", "<$net_^>", run.panels())
    texts = {element.text for element in ElementTree.parse(tmp_path / "x.svg").iter(f"{SVG}text")}
    assert {"<$net_^>", "test 日本 $x_^", "train loss (smoothed)", "learning rate", "iteration"} <= texts
    assert capfd.readouterr().err == ""


def test_nothing_to_draw(tmp_path, told):
    empty = CurvePoints("empty")
    empty.train(0, math.nan, 0.1)
    assert [panel.title for panel in empty.panels()] == ["learning rate"]
    write_curve(CurvePoints("empty"), f"{tmp_path}/x")
    assert list(tmp_path.iterdir()) == [] and told == []


def test_one_point_and_a_constant_can_be_drawn(tmp_path, told):
    pytest.importorskip("matplotlib")
    run = CurvePoints("short")
    run.train(0, 0.0, 0.1)
    write_curve(run, f"{tmp_path}/short")
    assert (tmp_path / "short_curve.png").exists()


def test_a_run_does_not_fail_for_its_curve(tmp_path, told, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        write_curve(history(), f"{tmp_path}/x")
    assert "x_curve.png: drawing needs matplotlib: pip install engine[plot]" in told.pop()
    pytest.importorskip("matplotlib")
    write_curve(history(), f"{tmp_path}/none/x")
    assert "none/x_curve.png: cannot be written" in told.pop()
    monkeypatch.setattr("engine.report.plot._draw", lambda *_: 1 / 0)
    write_curve(history(), f"{tmp_path}/x")
    assert "The curve is left out: ZeroDivisionError" in told.pop()
    assert list(tmp_path.iterdir()) == []
