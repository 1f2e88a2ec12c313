"""tools/bench/kill.py, a few kills of it: run `python tools/bench/kill.py` for a hundred."""

import subprocess
import sys

import pytest

from tests.mpi import REPO, mpiexec


@pytest.mark.slow
@pytest.mark.mpi
def test_four_kills(tmp_path):
    mpiexec()
    command = [sys.executable, "tools/bench/kill.py", "--kills", "4", "--iterations", "40", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "4 kills, 0 with a fault" in done.stdout, done.stdout + done.stderr
