"""The log as Caffe's tools and terminals read it."""

import datetime
import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pyte
import pytest

from engine.report.log import log, set_up, terminal, warn
from engine.report.progress import Progress

LINE = re.compile(r"([IWE])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) +\d+ (\w+\.py):\d+\] (.*)")


# A program that shows a bar and a line, waits for a line on stdin, and shows more of both.
CHATTER = """
import sys, time
from engine.report.log import log, set_up
from engine.report.progress import Progress
set_up()
with Progress("Training", 10) as progress:
    for done in range(1, 6):
        progress.update(done)
        log("a line")
        if done == 2:
            sys.stdin.readline()
        time.sleep(0.12)
print("to the end")
"""


def open_terminal(columns: int = 80) -> tuple[int, int]:
    """Returns the descriptors of a pseudo-terminal's ends, the master's first."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    return master, slave


def written(master: int, end: str) -> str:
    """Returns what was written on sys.stderr's terminal. It arrives in several reads, so this writes `end` and reads up
    to it."""
    sys.stderr.write(end)
    sys.stderr.flush()
    text = b""
    while not text.endswith(end.encode()):
        text += os.read(master, 1 << 16)
    return text.removesuffix(end.encode()).decode()


def shown(text: str, columns: int = 80) -> list[str]:
    """Returns the lines that a terminal shows after a program has written `text`."""
    screen = pyte.Screen(columns, 24)
    pyte.Stream(screen).feed(text)
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.fixture
def on_terminal(monkeypatch):
    """Yields a function that makes stderr a terminal with that many columns, and returns the master's descriptor."""
    monkeypatch.setenv("TERM", "xterm")
    ends = []

    def put(columns: int = 80) -> int:
        master, slave = open_terminal(columns)
        ends.append((master, open(slave, "w")))
        monkeypatch.setattr("sys.stderr", ends[-1][1])
        return master

    yield put
    for master, stream in ends:
        stream.close()
        os.close(master)


@pytest.fixture
def lines(capsys):
    """Returns a function that returns the lines on stderr."""
    return lambda: capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def no_log_afterwards():
    yield
    for handler in list(logging.getLogger("engine").handlers):
        logging.getLogger("engine").removeHandler(handler)


def test_a_line_is_like_glogs(lines):
    set_up()
    log("Iteration 100, lr = 0.001")
    warn("look here")
    found = [LINE.fullmatch(line) for line in lines()]
    assert [match[1] for match in found] == ["I", "W"]
    assert found[0][8] == "test_log.py" and found[0][9] == "Iteration 100, lr = 0.001"
    month, day, hour, minute, second, microsecond = map(int, found[0].groups()[1:7])
    now = datetime.datetime.now()
    at = datetime.datetime(now.year, month, day, hour, minute, second, microsecond)
    assert abs((now - at).total_seconds()) < 5


def test_every_line_of_a_message_has_the_time(lines):
    set_up()
    log("one\ntwo")
    assert [LINE.fullmatch(line)[9] for line in lines()] == ["one", "two"]


def test_other_ranks_are_silent(lines):
    set_up(rank=1)
    log("nothing")
    warn("nothing")
    assert lines() == []


@pytest.mark.parametrize(("level", "letters"), [("", "IWE"), ("0", "IWE"), ("1", "WE"), ("2", "E"), ("3", "")])
def test_glogs_least_level(level, letters, lines, monkeypatch):
    monkeypatch.setenv("GLOG_minloglevel", level)
    for given in (None, int(level or 0)):
        set_up(level=given)
        log("I")
        warn("W")
        logging.getLogger("engine").error("E")
        assert [line[0] for line in lines()] == list(letters)
        monkeypatch.setenv("GLOG_minloglevel", "0")


@pytest.mark.parametrize("level", ["x", "-1", "1.5"])
def test_a_least_level_that_is_no_number(level, lines, monkeypatch):
    monkeypatch.setenv("GLOG_minloglevel", level)
    set_up()
    log("all are shown")
    warned, shown = lines()
    message = f"GLOG_minloglevel must be a whole number, 0 for all lines to 3 for none; got '{level}'; all are shown"
    assert warned[0] == "W" and warned.endswith(message) and shown.endswith("] all are shown")


def test_set_up_twice_prints_once(lines):
    set_up()
    set_up()
    log("once")
    assert len(lines()) == 1


def test_a_bar_gives_way_to_log_lines(on_terminal):
    master = on_terminal()
    set_up()
    with Progress("Training", 10, begin=2) as progress:
        progress.update(10, note="loss = 1\x1b]0;owned\x07")
        log("a line")
        with Progress("Testing") as test:
            test.update(3)
            log("another line")
    text = written(master, "the end")
    assert "100%" in text and "10/10" in text and r"loss = 1\x1b]0;owned\x07" in text and "Testing: 3it" in text
    found = [LINE.fullmatch(line) for line in shown(text)]
    assert [match and match[9] for match in found] == ["a line", "another line"]  # nothing of the bars remains


def test_no_bar_without_a_terminal(lines):
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        for done in range(1, 6):
            progress.update(done, 5)
    assert [LINE.fullmatch(line)[9] for line in lines()] == ["Processed 5 of 5 files."]


def test_no_bar_where_a_terminal_cannot_draw_it(on_terminal, monkeypatch):
    on_terminal(columns=0)
    set_up()
    assert terminal() is None
    on_terminal()
    set_up()
    assert terminal()
    monkeypatch.setenv("TERM", "dumb")
    set_up()
    assert terminal() is None


@pytest.mark.parametrize("gone", ["terminal", "pipe", "closed"])
def test_a_run_outlives_its_terminal(gone):
    """Closing a terminal, or the program that reads the log, costs the log and nothing else."""
    command = [sys.executable, "-c", CHATTER]
    if gone == "closed":
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    ours, theirs = open_terminal() if gone == "terminal" else os.pipe()
    run = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    text = ""
    while gone != "closed" and text.count("a line") < 2:
        text += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert ("Training" in text) == (gone == "terminal")
    assert run.communicate("go on\n", timeout=60) == ("to the end\n", None)
    assert run.returncode == 0
