"""tools/bench/chaos.py, a few events of it: run `python tools/bench/chaos.py --events 1000` for many."""

import subprocess
import sys

import pytest

from tests.mpi import REPO, mpiexec


@pytest.mark.slow
@pytest.mark.mpi
def test_a_few_events(tmp_path):
    mpiexec()
    command = [sys.executable, "tools/bench/chaos.py", "--events", "6", "--iterations", "40", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and "6 events, 0 with a fault" in done.stdout, done.stdout + done.stderr
