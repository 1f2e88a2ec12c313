"""When Python looks for garbage in a process that is engine's own."""

import subprocess
import sys

PROGRAM = """
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
assert gc.isenabled() and gc.get_threshold()[0] == 60_000
Cycle()
many = [[] for _ in range(70_000)]
print("looked", flush=True)
assert gc.get_threshold() == usual
Cycle()
"""


def test_imports_are_not_searched_for_garbage():
    """But what a run makes is, from the start of the run on; not at the end, where all goes anyway."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["found", "looked"]
