"""When Python's garbage collector runs in a process of `engine`."""

import subprocess
import sys

BEGIN = """
import gc, sys
from engine.cli import main

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("found")

usual = gc.get_threshold()
sys.argv = ["engine", "--version"]
main()
"""
PROGRAM = """
assert gc.isenabled() and gc.get_threshold()[0] == 100_000
Cycle()
many = [[] for _ in range(110_000)]
print("looked", flush=True)
assert gc.get_threshold() == usual
Cycle()
"""


def printed_by(text: str) -> list[str]:
    """Returns the lines that a program prints after what the command line does at its start."""
    done = subprocess.run([sys.executable, "-c", BEGIN + text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[1:]


def test_imports_are_not_searched_for_garbage():
    """The collector looks at what a run has made, from the start of the run on. It does not run at the end of the
    process, when everything goes anyway."""
    assert printed_by(PROGRAM) == ["found", "looked"]


def test_what_users_code_makes_is_found_at_once_and_at_the_end():
    text = "from engine.host.startup import collect_as_ever; collect_as_ever(); assert gc.get_threshold() == usual"
    assert printed_by(text + "; Cycle()") == ["found"]
