"""The log as Caffe's tools read it."""

import datetime
import io
import logging
import re

import pytest

from engine.report import log as log_module
from engine.report.log import Console, log, set_up, warn
from engine.report.progress import Progress

LINE = re.compile(r"([IWE])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) +\d+ (\w+\.py):\d+\] (.*)")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def lines(capsys):
    """A function that returns the lines on stderr."""
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


def test_set_up_twice_prints_once(lines):
    set_up()
    set_up()
    log("once")
    assert len(lines()) == 1


def test_a_bar_gives_way_to_log_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    set_up()
    with Progress("Training", 10) as progress:
        progress.update(10, note="loss = 1")
        log("a line")
    text = stream.getvalue()
    assert "100% 10/10" in text and "loss = 1" in text
    erased, _, after = text.partition("\r\x1b[2K")
    assert "Training" in erased and LINE.match(after.split("\n")[0])
    assert text.endswith("\r\x1b[2K")


def test_no_bar_without_a_terminal(lines):
    set_up()
    with Progress("Converting", line="Processed {done} of {total} files.") as progress:
        for done in range(1, 6):
            progress.update(done, 5)
    assert [LINE.fullmatch(line)[9] for line in lines()] == ["Processed 5 of 5 files."]


def test_a_dumb_terminal_is_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not Console(Terminal()).is_terminal
    assert log_module.terminal() is None
