"""The curve of a run, as a picture and as a table, with and without matplotlib."""

import math
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from engine.comm.world import World
from engine.errors import ConfigError
from engine.report.curve import Curve, read_table
from engine.report.observer import Run
from engine.report.plot import CurvePoints, write_curve, write_panels
from tests.solver.harness import digits_net, make_solver

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def told(monkeypatch):
    """Returns a list that collects the messages of write_curve()."""
    found: list[str] = []
    monkeypatch.setattr("engine.report.plot.log", found.append)
    monkeypatch.setattr("engine.report.plot.warn", found.append)
    return found


def history() -> CurvePoints:
    """Returns the curves of a run with losses, rates and tests."""
    run = CurvePoints("digits")
    for iteration in range(0, 100, 10):
        run.train(iteration, 2.3 * math.exp(-iteration / 30), 0.1 * (1 - iteration / 100))
    for iteration in (0, 50, 100):
        run.test(iteration, {"accuracy": np.array([iteration / 100]), "loss": np.array([2.0])}, {"loss": 1.0})
    return run


def test_panels_hold_losses_apart_from_other_figures():
    panels = {panel.title: [series.name for series in panel.series] for panel in history().panels()}
    assert panels == {
        "loss": ["train loss", "test loss"],
        "test accuracy": ["test accuracy"],
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
    assert {"<$net_^>", "test 日本 $x_^", "train loss", "learning rate", "iteration"} <= texts
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
    assert "x_curve.png: drawing needs matplotlib: pip install prototxt-engine[plot]" in told.pop()
    pytest.importorskip("matplotlib")
    write_curve(history(), f"{tmp_path}/none/x")
    assert "none/x_curve.png: cannot be written" in told.pop()
    monkeypatch.setattr("engine.report.plot._draw", lambda *_: 1 / 0)
    write_curve(history(), f"{tmp_path}/x")
    assert f"The curve is left out: {tmp_path}/x_curve.png: cannot be drawn: ZeroDivisionError" in told.pop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ImportError("no fonts"), ValueError("no fonts\nin a second line")])
def test_what_fails_while_drawing_is_told_in_one_line(tmp_path, told, monkeypatch, error):
    """This includes an ImportError, which does not mean here that matplotlib is missing."""
    pytest.importorskip("matplotlib")

    def draw(*_):
        raise error

    monkeypatch.setattr("engine.report.plot._draw", draw)
    write_curve(history(), f"{tmp_path}/x")
    assert told[0].endswith(f"x_curve.png: cannot be drawn: {type(error).__name__}: no fonts")


TWO_PARTS = (
    "max_iter: 12 display: 3 test_interval: 6 test_iter: 1 average_loss: 2 snapshot: 6 stepvalue: 5 stepvalue: 9"
)


def curve_of(folder, iterations, snapshot=""):
    """Trains, from the start or from a snapshot; returns the points of its curve."""
    text = TWO_PARTS.replace("max_iter: 12", f"max_iter: {iterations}") + ' lr_policy: "multistep" gamma: 0.1'
    solver = make_solver(text, digits_net(), folder)
    if snapshot:
        solver.restore(str(folder / snapshot))
    solver.solve()
    solver.close()
    return next(each for each in solver.observers if isinstance(each, Curve))._points


@pytest.mark.parametrize(("said", "drawn"), [("0", False), ("", True)])
def test_a_picture_is_left_out_on_request(tmp_path, monkeypatch, said, drawn):
    """The table is written all the same."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("ENGINE_CURVE", said)
    curve_of(tmp_path, 3)
    assert (tmp_path / "net_curve.png").exists() is drawn and (tmp_path / "net_curve.csv").exists()


def test_a_request_that_says_neither_yes_nor_no(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_CURVE", "off")
    with pytest.raises(ConfigError, match=r"ENGINE_CURVE must be 0 \(no picture of a run's curve\) or 1; got 'off'"):
        make_solver(TWO_PARTS, digits_net(), tmp_path)


def test_a_resumed_run_draws_all_of_it(tmp_path):
    """Neither does it draw what was lost: the run was killed after iteration 9, and goes on from 6."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = curve_of(tmp_path / "whole", 12)
    curve_of(tmp_path / "parts", 9)
    resumed = curve_of(tmp_path / "parts", 12, "net_iter_6.solverstate")
    assert [vars(panel) for panel in resumed.panels()] == [vars(panel) for panel in whole.panels()]
    loss, test, rate = whole.panels()
    assert [point[0] for point in loss.series[0].points] == [0, 3, 6, 9, 12]  # the last iteration, too
    assert loss.series[0].name == "train loss (mean of 2)"
    rates = [(0, 1e-2), (5, 1e-3), (9, 1e-4), (12, 1e-4)]
    assert rate.series[0].points == [(at, pytest.approx(value)) for at, value in rates]
    assert rate.series[0].steps and test.title == "test accuracy"
    assert read_table(tmp_path / "parts/net_curve.csv") == read_table(tmp_path / "whole/net_curve.csv")


def test_a_run_that_is_over_keeps_its_curve(tmp_path):
    """A supervisor may go on from its end, or somebody who uses --resume auto by habit."""
    curve_of(tmp_path, 6)
    before = read_table(tmp_path / "net_curve.csv")
    curve_of(tmp_path, 6, "net_iter_6.solverstate")
    assert sorted(read_table(tmp_path / "net_curve.csv")) == sorted(before)


def test_another_rank_draws_all_of_a_resumed_run(tmp_path):
    """This happens if rank 0 dies after the resume. The other rank has not written to the table before."""
    curve_of(tmp_path, 6)
    path = str(tmp_path / "net_curve.csv")
    before = [row for row in read_table(path) if row[2] < 6]
    curve, world = Curve(lambda iteration: True), World()
    world.rank = 1
    curve.begin(Run(world, SimpleNamespace(name="net"), [], 6, 12, f"{tmp_path}/net"))
    world.rank = 0
    curve.gone_back(6)
    curve.finished(12, 1.5)
    assert sorted(read_table(path)) == sorted([*before, (True, "train loss", 12, 1.5)])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no table\n",
        "loss,name,iteration,value\n1,x,y,0.5\n",
        "\x00",
        "loss,name,iteration,value\n1,x\ry,3,0.5\n",
        'loss,name,iteration,value\n1,"' + "x" * 200_000 + "\n",
    ],
    ids=range(6),
)
def test_a_damaged_table_is_left_out(tmp_path, content, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("engine.report.curve.warn", told.append)
    curve_of(tmp_path, 6)
    (tmp_path / "net_curve.csv").write_text(content)
    resumed = curve_of(tmp_path, 9, "net_iter_6.solverstate")
    assert resumed.panels()[0].series[0].points[0][0] == 6
    assert len(told) == 1 and "The curve begins at iteration 6" in told[0] and "net_curve.csv: no curve's" in told[0]


def test_a_row_that_was_not_written_to_its_end_is_left_out(tmp_path):
    (tmp_path / "x.csv").write_text("loss,name,iteration,value\n1,train loss,3,0.5\n1,train loss,6,0.")
    assert read_table(tmp_path / "x.csv") == [(True, "train loss", 3, 0.5)]


def test_a_run_that_goes_back_forgets_what_it_trains_again(tmp_path):
    """It goes back after a rank has died. The table is written anew, without what came at that iteration or later."""
    solver = make_solver("display: 1 max_iter: 8", digits_net(), tmp_path)
    solver.run(8)
    curve = next(observer for observer in solver.observers if isinstance(observer, Curve))
    path = str(tmp_path / "net_curve.csv")
    before = [row for row in read_table(path) if row[2] < 4]
    curve.gone_back(4)
    curve.finished(8, 1.5)
    assert sorted(read_table(path)) == sorted([*before, (True, "train loss", 8, 1.5)])
    solver.close()
