"""A few random events of tools/bench/chaos.py. `python tools/bench/chaos.py --events 1000` tries many."""

import os
import subprocess
import sys

import pytest

from tests.mpi import REPO, mpiexec

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a disk that is soon full")


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("only", [[], pytest.param(["--only", "fill_disk"], marks=needs_root)], ids=["", "fill_disk"])
def test_a_few_events(only, tmp_path):
    mpiexec()
    events = ["--events", "6", "--iterations", "40", "--keep", str(tmp_path)]
    command = [sys.executable, "tools/bench/chaos.py", *events, *only]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and "6 events, 0 with a fault" in done.stdout, done.stdout + done.stderr
