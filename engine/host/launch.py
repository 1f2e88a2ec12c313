"""Finds out which launcher started this process, from the environment alone (MPI is not loaded), and makes the command
lines of verbs that start ranks themselves.

A job may be divided into groups of ranks, each of which runs a verb of its own (`engine groups`). A rank knows the
ranks of its own group only.
"""

import contextlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import engine
from engine.errors import CommError

RANKS_A_CORE = 32  # at most: each rank is a process that imports and computes, and a host hangs under many more
SPOKESMAN_SECONDS = 1.0  # within which rank 0 has printed an error that all ranks meet
GROUPS = "ENGINE_GROUPS"  # the variable that says how many ranks each group of the job has, as "2,2"


@dataclass(frozen=True)
class Launch:
    """How this process was launched."""

    launcher: str  # its name, for people
    rank: int  # of this process in its group
    size: int  # ranks of the group
    first: int  # the number that the group's rank 0 has in the job
    job_size: int  # ranks of the job


# Launcher, its variables for rank and size. Only srun sets SLURM_STEP_NUM_TASKS; SLURM_NTASKS is set in a batch script,
# too, which is one process. Open MPI comes first, for its mpiexec may itself run under srun.
_LAUNCHERS = (
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NUMBER = re.compile("[0-9]{1,9}")


def detect(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns what the launcher says of this process; None if it was started by hand, also in a shell under srun."""
    for launcher, rank, size in _LAUNCHERS:
        if _NUMBER.fullmatch(environ.get(rank, "")) and _NUMBER.fullmatch(environ.get(size, "")):
            if launcher == "srun" and int(environ[size]) == 1:  # such as srun --pty bash: its commands inherit these
                return None
            return _in_group(launcher, int(environ[rank]), int(environ[size]), environ.get(GROUPS, ""))
    return None


def _in_group(launcher: str, rank: int, size: int, groups: str) -> Launch:
    """Finds the group of a rank of the job. groups: the text of ENGINE_GROUPS, which has no effect if it does not fit
    the job; check_groups() complains of that."""
    first = 0
    for count in group_sizes(groups, size) or [size]:
        if rank < first + count:
            return Launch(launcher, rank - first, count, first, size)
        first += count
    return Launch(launcher, rank, size, 0, size)


def group_sizes(text: str, ranks: int) -> list[int]:
    """Returns [2, 2] for "2,2"; [] if these are not positive numbers whose sum is `ranks`."""
    counts = [int(word) if _NUMBER.fullmatch(word) else 0 for word in text.split(",")]
    return counts if all(counts) and sum(counts) == ranks else []


def check_groups(launch: Launch) -> None:
    """Raises CommError if the groups of ENGINE_GROUPS do not have as many ranks as the job."""
    text = os.environ.get(GROUPS, "")
    if text and not group_sizes(text, launch.job_size):
        raise CommError(f"{GROUPS}={text}: expected numbers of ranks, separated by commas, of {launch.job_size} in all")


def is_spokesman() -> bool:
    """Returns whether this rank prints an error that all ranks meet before they are connected: rank 0 does.

    On other ranks it returns after SPOKESMAN_SECONDS, for a launcher may end all ranks when the first one ends."""
    launch = detect()
    if launch is None or launch.rank == 0:
        return True
    time.sleep(SPOKESMAN_SECONDS)
    return False


def speaks_for_host(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a rank other than rank 0 that is still alive after is_spokesman() prints the error, too. Under
    srun, which does not end the others, the first rank of each host does; under other launchers every such rank
    does."""
    return environ.get("SLURM_LOCALID", "0") == "0"


def end_all(status: int, environ: Mapping[str, str] = os.environ) -> None:
    """Asks the launcher to end all ranks with this exit status, after an error before MPI_Init.

    The mpiexec of MPICH and of Intel MPI does not act when one rank exits that early, and the others would wait for it
    in MPI_Init: it is asked by a message of its own protocol, PMI. Other launchers end the ranks by themselves, or
    never do; for them nothing is done."""
    with contextlib.suppress(KeyError, ValueError, OSError):
        connection = int(environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(connection).st_mode):  # else it was closed, and another file has its number
            os.write(connection, b"cmd=abort exitcode=%d\n" % status)


# Open MPI refuses more ranks than cores unless it is told otherwise (by one variable in version 4, by another in 5),
# and then its ranks spin while they wait, unless they are told to yield. Other launchers need nothing.
OVERSUBSCRIBE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def mpiexec() -> str | None:
    """Returns the path of the mpiexec beside this Python, whose library mpi4py finds, too; else of the one in PATH;
    None if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def own_command(*arguments: str) -> list[str]:
    """Returns the command line of `engine arguments...`: this engine, by the path of its file. Python's option -m would
    put the current folder first on the import path, and a ./numpy.py beside the data would be imported."""
    return [sys.executable, str(Path(engine.__file__).with_name("__main__.py")), *arguments]


def command_for(ranks: int, arguments: Sequence[str]) -> list[str]:
    """Returns the command line that runs `engine arguments...` on so many ranks of this host. Raises CommError if
    mpiexec is needed and not found, and for more than RANKS_A_CORE ranks a core."""
    cores = len(os.sched_getaffinity(0))
    if ranks > (most := RANKS_A_CORE * cores):
        raise CommError(
            f"{ranks} ranks on one host of {cores} cores: expected {most} at most; a cluster's launcher starts "
            "more, as in mpiexec -n N engine train"
        )
    command = own_command(*arguments)
    if ranks == 1:
        return command
    launcher = mpiexec()
    if launcher is None:
        raise CommError(f"{ranks} ranks need mpiexec: pip install mpich, or load the cluster's module")
    return [launcher, "-n", str(ranks), *command]
