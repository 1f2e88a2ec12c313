"""What is logged during a run, when it is stopped, and at its end."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from engine.comm.world import World
from engine.report import observer
from engine.report.display import TrainingBar
from engine.report.log import set_up
from engine.report.observer import Run, StepRecord
from engine.report.summary import Summary
from engine.report.table import duration
from tests.mpi import ENVIRON, REPO, mpiexec
from tests.solver.harness import digits_net, make_solver, send_at


@pytest.mark.parametrize(
    "seconds, text",
    [(9.87, "9.9 s"), (59.97, "1 min 0 s"), (125, "2 min 5 s"), (7384, "2 h 3 min"), (200_000, "2 days 7 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def lines_of(capfd):
    return [line.partition("] ")[2] for line in capfd.readouterr().err.splitlines()]


def test_a_run_ends_with_its_best_test(tmp_path, capfd):
    from engine.report.log import set_up
    from engine.report.summary import Summary

    set_up()
    text = "max_iter: 8 test_interval: 2 test_iter: 2 snapshot: 4 display: 4"
    solver = make_solver(text, digits_net(), tmp_path, observers=[Summary()])
    solver.solve()
    solver.close()
    lines = lines_of(capfd)
    scores = [(float(line.split("= ")[1]), line) for line in lines if "accuracy = " in line and "Test net" in line]
    best = next(line for line in lines if line.startswith("Best test: accuracy = "))
    value, iteration = re.fullmatch(r"Best test: accuracy = (\S+) at iteration (\d+) \(.*\)", best).groups()
    assert float(value) == max(score for score, _ in scores)
    assert ("net_iter_" + iteration + ".caffemodel" in best) == (iteration in ("4", "8"))
    assert any(
        re.match(r"Trained iterations 0 to 8 in \S+ s, with tests and all: \S+ iterations/s, ", line) for line in lines
    )
    assert any(re.fullmatch(r"    \S+ s have passed, \S+ s are left", line) for line in lines)


@pytest.mark.parametrize("best", ["", 'snapshot_best: "accuracy" '])
def test_the_best_test_of_a_run_that_goes_on_names_what_was_saved_before(tmp_path, capfd, best):
    set_up()
    text = best + "max_iter: 8 test_interval: 8 test_iter: 2"
    make_solver(text, digits_net(), tmp_path).solve()
    again = make_solver(text, digits_net(), tmp_path, observers=[Summary()])
    again.restore(str(tmp_path / "net_iter_8.solverstate"))
    again.solve()
    (line,) = (line for line in lines_of(capfd) if line.startswith("Best test: accuracy"))
    found = re.search(r"saved in (.*)\)$", line)
    assert found and os.path.exists(found[1]), line


def test_a_file_of_an_earlier_run_is_not_what_this_one_has_saved(tmp_path, capfd):
    set_up()
    (tmp_path / "net_iter_2.caffemodel").touch()
    # At a rate of 0 all tests give the same.
    text = "max_iter: 4 test_interval: 2 base_lr: 0 test_initialization: false"
    make_solver(text, digits_net(), tmp_path, observers=[Summary()]).solve()
    (line,) = (line for line in lines_of(capfd) if line.startswith("Best test: accuracy"))
    assert "at iteration 2 (not saved" in line


def test_a_stop_is_said_when_it_is_asked_for(tmp_path, capfd):
    from engine.report.log import set_up

    set_up()
    solver = make_solver("max_iter: 9", digits_net(), tmp_path)
    send_at(solver, 3, signal.SIGTERM)
    assert not solver.solve()
    solver.close()
    assert "SIGTERM: finishing iteration 3, then a snapshot; Ctrl-C ends it at once" in lines_of(capfd)
    assert signal.set_wakeup_fd(-1) == -1
    again = make_solver("max_iter: 9", digits_net(), tmp_path)
    again.restore(str(tmp_path / "net_iter_4.solverstate"))
    again.close()
    assert "Going on after iteration 4 of 9" in lines_of(capfd)


def on_terminal(command):
    """Runs a command on a terminal of 120 columns; returns all that it has written, in order."""
    import fcntl
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPO)
        os.execvpe(command[0], command, {**os.environ, **ENVIRON, "TERM": "xterm", "OMP_NUM_THREADS": "1"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    found, end = b"", time.monotonic() + 100
    while time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                block = os.read(terminal, 1 << 16)
            except OSError:  # the last process on the terminal has closed it
                break
            if not block:
                break
            found += block
    else:
        os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return found.decode(errors="replace")


def training(folder, iterations=8):
    """Writes a net and a solver of the digits; returns the command that trains it."""
    (folder / "net.prototxt").write_text(digits_net())
    (folder / "solver.prototxt").write_text(
        f'net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: {iterations} '
        "snapshot_after_train: false"
    )
    return [sys.executable, "-m", "engine", "train", "--solver", str(folder / "solver.prototxt")]


@pytest.mark.mpi
@pytest.mark.parametrize("way", ["mpiexec", "--ranks"])
def test_several_ranks_have_a_bar_where_their_launcher_has_a_terminal(tmp_path, way):
    command = training(tmp_path)
    command = [mpiexec(), "-n", "2", *command] if way == "mpiexec" else [*command, "--ranks", "2"]
    mpiexec()  # skips the test if there is none
    shown = on_terminal(command)
    assert re.search(r"Training: 100%.* 8/8 \[.*it/s, loss = ", shown), shown[-2000:]
    bars = [piece for piece in re.split(r"[\r\n]", shown) if piece.startswith("Training:")]
    assert max(map(len, bars)) > 100  # as wide as the terminal


@pytest.mark.mpi
def test_no_bar_goes_into_a_file(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        subprocess.run([mpiexec(), "-n", "2", *training(tmp_path)], cwd=REPO, stderr=log, env={**os.environ, **ENVIRON})
    text = (tmp_path / "log").read_text()
    assert "Optimization Done." in text and "Training:" not in text


def test_a_run_that_goes_back_forgets_the_tests_that_it_repeats(capfd):
    """It goes back after a rank has died, and tests again with other weights."""
    set_up()
    summary = Summary()
    summary.begin(Run(World(), None, [], 0, 10))
    for iteration, accuracy in ((0, 0.1), (4, 0.5), (6, 0.9)):
        summary.test(observer.TestRecord(iteration, 0, {"accuracy": np.array([accuracy])}, {}))
    summary.gone_back(6)
    summary.test(observer.TestRecord(6, 0, {"accuracy": np.array([0.8])}, {}))
    summary.end(None)
    assert "Best test: accuracy = 0.8 at iteration 6" in capfd.readouterr().err


def test_the_bar_goes_back_with_the_run(monkeypatch):
    """This includes a rank without a bar, because rank 0 had drawn it before it died."""
    begun = []
    monkeypatch.setattr(
        "engine.report.display.Progress", lambda *_, begin: begun.append(begin) or SimpleNamespace(close=list)
    )
    bar = TrainingBar()
    bar.begin(Run(World(), None, [], 5, 10))
    bar.gone_back(7)
    assert begun == [5, 7]


def test_where_ranks_take_different_steps_the_run_counts(capfd):
    """In mode ASYNC rank 0 takes only some of the iterations, and perhaps not the last one."""
    set_up()
    summary, world = Summary(), World()
    summary.begin(Run(world, None, [], 0, 10, in_step=False))
    for iteration in (0, 3, 7):
        summary.step(StepRecord(iteration, 0.1, 1.0, 0, 1, 0, 0, samples=32))
    summary.finished(10, 1.0)
    summary._begin, summary._end = 0.0, 10.0
    summary.end(None)
    assert "Trained iterations 0 to 10" in (said := capfd.readouterr().err) and "32 samples/s" in said


def test_a_test_that_is_nan_is_not_the_best(capfd):
    """No number is better than NaN by comparison, so NaN would stay the best."""
    set_up()
    summary = Summary()
    summary.begin(Run(World(), None, [], 0, 10))
    for iteration, loss in ((0, np.nan), (3, 0.5), (6, np.nan), (9, 0.7)):
        summary.test(observer.TestRecord(iteration, 0, {"loss": np.array([loss])}, {"loss": 1.0}))
    summary.end(None)
    assert "Best test: loss = 0.5 at iteration 3 " in capfd.readouterr().err
