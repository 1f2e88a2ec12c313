"""docs/security.md names a test for each of its lines. Lines that belong to no room are tested here."""

import os
import re
import stat
import subprocess
import sys

import pytest

from engine.watchdog.board import Board
from engine.watchdog.guard import _shown
from tests.mpi import REPO

TEXT = (REPO / "docs/security.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if re.match(r"\| (?!what they may)", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_test_holds_each_line(row):
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", row[2])
    assert len(row) == 3 and named
    for file, name in named:
        (path,) = (REPO / "tests").rglob(file)
        assert f"\ndef {name}(" in path.read_text(), f"{file} has no {name}"


def test_there_are_lines():
    assert len(ROWS) > 15


def test_names_of_layers_stay_on_their_line_of_a_report():
    assert _shown("forward of layer a\nat 0 1 \x1b]0;x\x07") == r"forward of layer a\nat 0 1 \x1b]0;x\x07"
    assert len(_shown("x" * 100_000)) < 1000


def test_the_board_is_nobody_elses():
    board = Board()
    found = os.fstat(board.descriptor)
    assert stat.S_IMODE(found.st_mode) == 0o600 and found.st_nlink == 0


def test_the_token_is_on_no_command_line():
    program = """
from engine.watchdog.board import Board
from engine.watchdog.sentinel import Sentinel
sentinel = Sentinel(0, Board())
token = sentinel.hub(one_host=True).split()[0]
pid = sentinel._process.pid
print(len(token), *(token in open(f"/proc/{pid}/{what}").read() for what in ("cmdline", "environ")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["32", "False", "False"], done.stderr
