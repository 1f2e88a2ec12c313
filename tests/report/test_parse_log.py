"""Logs of engine and of Caffe become rows, CSV and curves."""

import csv
import math
import shlex
import sys
import time
from xml.etree import ElementTree

import pytest

from engine.cli import main
from engine.errors import ConfigError, DataError, EngineError
from engine.report.parse_log import parse, read_log, write_csv
from engine.report.plot_log import _history, plot_logs
from engine.verbs.parse_log import delimiter

# A log of Caffe in which the year ends during the run, and an output of the second test net has two elements.
CAFFE = """Log file created at: 2017/12/31 23:59:00
I1231 23:59:10.000000  7 solver.cpp:279] Solving LeNet
I1231 23:59:10.000000  7 solver.cpp:280] Learning Rate Policy: step
I1231 23:59:10.500000  7 solver.cpp:337] Iteration 0, Testing net (#0)
I1231 23:59:11.000000  7 solver.cpp:404]     Test net output #0: accuracy = 0.1
I1231 23:59:11.000000  7 solver.cpp:404]     Test net output #1: loss = 2.3 (* 1 = 2.3 loss)
I1231 23:59:11.500000  7 solver.cpp:337] Iteration 0, Testing net (#1)
I1231 23:59:12.000000  7 solver.cpp:404]     Test net output #0: accuracy = 0.25
I1231 23:59:12.000000  7 solver.cpp:404]     Test net output #1: accuracy = 0.5
I1231 23:59:20.000000  7 solver.cpp:228] Iteration 0 (0 iter/s, 0s/100 iters), loss = 2.5
I1231 23:59:20.000000  7 solver.cpp:244]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)
I1231 23:59:20.000000  7 sgd_solver.cpp:106] Iteration 0, lr = 0.01
I0101 00:00:10.250000  7 solver.cpp:228] Iteration 100, loss = 1.5e-05
I0101 00:00:10.250000  7 solver.cpp:244]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:10.250000  7 sgd_solver.cpp:106] Iteration 100, lr = 1e-3
I0101 00:00:11.000000  7 solver.cpp:454] Snapshotting to binary proto file x_iter_100.caffemodel
I0101 00:00:12.000000  7 solver.cpp:337] Iteration 100, Testing net (#0)
I0101 00:00:13.000000  7 solver.cpp:404]     Test net output #0: accuracy = 0.9
"""


def test_caffe_s_log():
    run = parse(CAFFE.splitlines())
    assert [(row.iteration, row.seconds, row.rate, row.loss) for row in run.train] == [
        (0, 10.0, 0.01, 2.5),
        (100, 60.25, 0.001, 1.5e-05),
    ]
    assert run.train[0].outputs == {"loss": 2.4} and math.isnan(run.train[1].outputs["loss"])
    assert [(row.iteration, row.rate) for row in run.tests[0]] == [(0, 0.01), (100, 0.001)]
    assert run.tests[0][1].outputs == {"accuracy": 0.9} and run.tests[0][1].seconds == 62.0
    assert run.tests[1][0].outputs == {"accuracy": 0.25, "accuracy[1]": 0.5}
    assert run.losses == {"loss"}


def test_csv(tmp_path):
    (tmp_path / "run.log").write_text(CAFFE)
    written = write_csv(str(tmp_path / "run.log"), str(tmp_path), ";")
    assert [path.name for path in written] == ["run.log.train", "run.log.test", "run.log.test1"]
    with open(written[0]) as file:
        rows = list(csv.reader(file, delimiter=";"))
    assert rows[0] == ["NumIters", "Seconds", "LearningRate", "loss", "SmoothedLoss"]
    assert rows[1] == ["0", "10.000000", "0.01", "2.4", "2.5"]
    with open(written[1]) as file:
        rows = list(csv.reader(file, delimiter=";"))
    assert rows[0] == ["NumIters", "Seconds", "LearningRate", "accuracy", "loss"]
    assert rows[2] == ["100", "62.000000", "0.001", "0.9", ""]


@pytest.mark.parametrize("text", ["", ";;", '"', "\n"])
def test_delimiters_that_are_none(text, capsys):
    assert main(["parse_log", "x.log", ".", "--delimiter", text]) == 2
    assert "expected one character" in capsys.readouterr().err


def test_a_tab_as_the_delimiter():
    assert delimiter(r"\t") == "\t"


def test_our_own_log(tmp_path, capfd):
    from engine.report.log import set_up
    from tests.solver.harness import digits_net, make_solver

    set_up()
    text = "max_iter: 12 display: 6 test_interval: 6 test_iter: 1 average_loss: 3"
    solver = make_solver(text, digits_net())
    solver.solve()
    solver.close()
    (tmp_path / "run.log").write_text(capfd.readouterr().err)
    run = read_log(str(tmp_path / "run.log"))
    assert [row.iteration for row in run.train] == [0, 6, 12] and run.train[0].rate == 0.01
    assert [row.iteration for row in run.tests[0]] == [0, 6, 12]
    assert set(run.tests[0][0].outputs) == {"loss", "accuracy"}
    assert run.train[1].seconds >= run.train[0].seconds >= 0
    assert run.train[2].loss == pytest.approx(solver.state.mean_loss(solver.world), rel=1e-5)


def test_curves(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(CAFFE)
    plot_logs([str(tmp_path / "a.log"), str(tmp_path / "b.log")], str(tmp_path / "x.svg"))
    texts = {e.text for e in ElementTree.parse(tmp_path / "x.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"a.log: train loss", "b.log: test accuracy", "a.log: learning rate", "loss", "learning rate"} <= texts
    plot_logs([str(tmp_path / "a.log")], str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_curves_that_cannot_be_drawn(tmp_path, monkeypatch):
    (tmp_path / "a.log").write_text(CAFFE)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EngineError, match=r"x.png: drawing needs matplotlib: pip install prototxt-engine\[plot\]"):
        plot_logs([str(tmp_path / "a.log")], str(tmp_path / "x.png"))


def test_a_constant_rate_is_drawn_to_the_end():
    """The line of the last loss has no rate beside it."""
    lines = ["Iteration 0, loss = 2", "Iteration 0, lr = 0.1", "Iteration 20, loss = 1"]
    rates = _history(parse(lines), 0).panels()[-1]
    assert (rates.title, rates.series[0].points) == ("learning rate", [(0, 0.1), (20, 0.1)])


def test_a_log_is_never_written_over(tmp_path):
    for name in ("a.log", "b.log", "log.png"):
        (tmp_path / name).write_text(CAFFE)
    for target in ("a.log", "log.png", "x.gif", "picture"):
        with pytest.raises(
            ConfigError, match=f"{target}: expected the picture to write, .png, .svg or .pdf, before the logs"
        ):
            plot_logs([str(tmp_path / "b.log")], str(tmp_path / target))
    assert all(path.read_text() == CAFFE for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["c.jpg", "a.log"], "curve.png a.log"),
        (["a.log", "c.svg"], "c.svg a.log"),
        (["a.log", "none.log", "b b.log"], "curve.png a.log 'b b.log'"),
        (["c.jpg", "none.log"], "curve.png LOG"),
    ],
)
def test_what_it_suggests_works(given, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.log", "b b.log"):
        (tmp_path / name).write_text(CAFFE)
    assert main(["plot_log", *given]) == 1
    suggested = capsys.readouterr().err.strip().rpartition("before the logs: engine ")[2]
    assert suggested == f"plot_log {told}"
    assert main(shlex.split(suggested)) == ("LOG" in told)


def test_numbers_that_are_none():
    """Such are a month of 13, a number of 5,000 digits, and Arabic digits."""
    lines = ["I1341 25:61:61.123456  7 a.py:1] Iteration 1, loss = 2", f"Iteration {'1' * 5000}, loss = 2"]
    run = parse([*lines, "Iteration \u0663, loss = 2", "Iteration 2, loss = \u0663"])
    assert [(row.iteration, row.loss) for row in run.train] == [(1, 2)] and math.isnan(run.train[0].seconds)


def test_the_rate_of_a_test_in_a_log_that_begins_again():
    rates = [(0, 0.1), (10, 0.2), (20, 0.3), (5, 0.4), (15, 0.5)]
    lines = [f"Iteration {iteration}, lr = {rate}" for iteration, rate in rates]
    run = parse([*lines, *(f"Iteration {i}, Testing net (#0)" for i in (0, 4, 5, 14, 15, 100))])
    assert [row.rate for row in run.tests[0]] == [0.1, 0.1, 0.4, 0.4, 0.5, 0.5]


def test_logs_are_read_in_linear_time():
    lines = [f"Iteration {i}, lr = 1\nIteration {i}, Testing net (#0)" for i in range(20_000)]
    begin = time.process_time()
    assert len(parse([*"\n".join(lines).splitlines(), "Iteration 1 (" * 50_000]).tests[0]) == 20_000
    assert time.process_time() - begin < 10


def test_logs_that_would_give_endless_tables_or_pictures(tmp_path):
    path = tmp_path / "x.log"
    outputs = [f"Iteration {i}, lr = 1\n Train net output #0: x{i} = 1" for i in range(1500)]
    path.write_text("\n".join(outputs))
    with pytest.raises(DataError, match=r"x\.log: a table of 1500 rows and 1500 outputs would be nearly empty"):
        write_csv(str(path), str(tmp_path))
    path.write_text("\n".join(f"Iteration 0, Testing net (#{i})" for i in range(1001)))
    with pytest.raises(DataError, match=r"x\.log: it tests 1001 nets, expected at most 1000"):
        read_log(str(path))
    path.write_text("Iteration 0, Testing net (#0)\n" + " Test net output #0: a = 1\n" * 1001)
    with pytest.raises(DataError, match=r"x\.log: 1001 curves, expected at most 1000"):
        plot_logs([str(path)], str(tmp_path / "x.png"))
    assert [each.name for each in tmp_path.iterdir()] == ["x.log"]


def test_something_else(tmp_path):
    (tmp_path / "x").write_text("no log\n")
    with pytest.raises(DataError, match="x: no log of a training run"):
        read_log(str(tmp_path / "x"))
    with pytest.raises(DataError, match="missing: cannot be read"):
        read_log(str(tmp_path / "missing"))


@pytest.mark.parametrize("prefix", ["[0] ", "[0]", "0: ", " 12: "])
def test_lines_of_mpiexec_and_srun_that_begin_with_their_rank(prefix):
    lines = [
        "I1127 10:00:00.000000 7 plan.py:28] Solving net",
        "I1127 10:00:02.500000 7 display.py:60] Iteration 20 (8 iter/s, 2.5s/20 iters), loss = 0.5",
        "I1127 10:00:02.500000 7 display.py:61] Iteration 20, lr = 0.01",
    ]
    (row,) = parse([prefix + line for line in lines]).train
    assert (row.iteration, row.seconds, row.loss, row.rate) == (20, 2.5, 0.5, 0.01)


CHAIN = """I1127 10:00:00.000000 7 train.py:200] Stage 1 of 2: a.prototxt
I1127 10:00:00.000000 7 plan.py:28] Solving net
I1127 10:00:02.000000 7 display.py:60] Iteration 0 (8 iter/s, 2.5s/20 iters), loss = 0.9
I1127 10:00:02.000000 7 display.py:61] Iteration 0, lr = 0.1
I1127 10:00:03.000000 7 display.py:60] Iteration 20 (8 iter/s, 2.5s/20 iters), loss = 0.5
I1127 10:00:03.000000 7 display.py:61] Iteration 20, lr = 0.01
I1127 10:00:04.000000 7 train.py:200] Stage 2 of 2: b.prototxt
I1127 10:00:04.000000 7 plan.py:28] Solving net
I1127 10:00:05.000000 7 display.py:60] Iteration 20 (8 iter/s, 2.5s/20 iters), loss = 0.4
I1127 10:00:05.000000 7 display.py:61] Iteration 20, lr = 0.02
"""


def test_stages_are_told_apart(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(CHAIN)
    (train,) = write_csv(str(log), str(tmp_path))
    rows = list(csv.reader(train.read_text().splitlines()))
    assert rows[0] == ["NumIters", "Seconds", "LearningRate", "SmoothedLoss", "Stage"]
    assert [(row[0], row[1], row[-1]) for row in rows[1:]] == [
        ("0", "2.000000", "1"),
        ("20", "3.000000", "1"),
        ("20", "1.000000", "2"),
    ]
    plot_logs([str(log)], str(tmp_path / "curve.svg"))
    drawn = (tmp_path / "curve.svg").read_text()
    assert "stage 1: " in drawn and "stage 2: " in drawn


def test_more_stages_than_curves_are_counted_before_they_are_drawn(tmp_path, monkeypatch):
    row = "I1127 10:00:02.000000 7 display.py:60] Iteration 0 (8 iter/s, 2.5s/20 iters), loss = 0.9\n"
    log = tmp_path / "run.log"
    stages = (
        f"I1127 10:00:00.000000 7 train.py:200] Stage {stage} of 1001: a.prototxt\n{row}" for stage in range(1, 1002)
    )
    log.write_text("".join(stages))
    monkeypatch.setattr("engine.report.plot_log._history", lambda *_: pytest.fail("began to draw"))
    with pytest.raises(DataError, match="1001 curves, expected at most 1000"):
        plot_logs([str(log)], str(tmp_path / "curve.svg"))
