"""If a rank is killed in the middle of a run, the others end, a line names it, and the snapshot is whole."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.weights import read_caffemodel, read_solverstate
from tests.mpi import ENVIRON, REPO, mpiexec

SOLVER = """
net: "{net}" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 1000000 display: 20 snapshot: 20
snapshot_prefix: "{folder}/net"
"""


def pid_of_rank(rank: int) -> int | None:
    """Returns the process id of a rank that this test has started, None if there is none. The rank's sentinel has the
    same environment, but another command."""
    wanted = {b"PMI_RANK=%d" % rank, b"OMPI_COMM_WORLD_RANK=%d" % rank}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"train" in command and b"ENGINE_TEST=%d" % os.getpid() in variables and wanted & set(variables):
            return int(folder.name)
    return None


@pytest.mark.mpi
@pytest.mark.parametrize(("victim", "servers"), [(0, 2), (1, 0)])
def test_kill_9_of_one_of_two_ranks(tmp_path, victim, servers):
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(net=REPO / "nets/digits.prototxt", folder=tmp_path))
    environ = {
        **ENVIRON,
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MLSL_NUM_SERVERS": str(servers),
        "ENGINE_TEST": str(os.getpid()),
    }
    train = [sys.executable, "-m", "engine", "train", "--solver", tmp_path / "solver.prototxt"]
    process = subprocess.Popen([mpiexec(), "-n", "2", *train], cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        while "Iteration 60," not in (line := process.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)
        killed = pid_of_rank(victim)
        os.kill(killed, signal.SIGKILL)
        _, rest = process.communicate(timeout=30)
    finally:
        process.terminate()  # mpiexec ends its ranks
    assert process.returncode != 0
    named = [line for line in rest.splitlines() if "died, killed or crashed" in line]
    assert len(named) == 1 and named[0].startswith(f"engine: rank {victim} (pid {killed} on "), rest
    assert "Traceback" not in rest
    last = int(re.search(rf"; the last snapshot is {tmp_path}/net_iter_(\d+)\.solverstate$", named[0])[1])

    states = [read_solverstate(path) for path in tmp_path.glob("*.solverstate")]
    assert last >= 60 and {20, 40, 60, last} <= {state.iteration for state in states}
    for state in states:
        assert len(state.history) == 8 and state.samples_seen == 64 * state.iteration
        assert all(np.isfinite(blob).all() for blobs in read_caffemodel(state.learned_net).values() for blob in blobs)
    assert pid_of_rank(1 - victim) is None
