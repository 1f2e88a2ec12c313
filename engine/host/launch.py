"""Which launcher started this process, from the environment alone: no MPI is loaded to find out. And a launcher for
verbs that start ranks themselves.

A job may be divided into groups of ranks, each of which runs a verb of its own (`engine groups`): to a rank, its group
is all there is.
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

RANKS_A_CORE = 32  # of more, each of which is a process that imports and computes, a host does not come back
LAUNCHER_KILLS_AFTER = 1.0  # seconds: before, rank 0 has printed what all ranks would


# How many ranks each group has, as "2,2"; the numbers are those of the job.
GROUPS = "ENGINE_GROUPS"


@dataclass(frozen=True)
class Launch:
    """rank, size: in this process' group; first, job_size: the group's first rank and all ranks, in the job."""

    launcher: str
    rank: int
    size: int
    first: int
    job_size: int


# Launcher, its variables for rank and size. SLURM_STEP_NUM_TASKS is set by srun only: SLURM_NTASKS is also there in a
# batch script that runs one process. Open MPI comes first, its mpiexec may itself run under srun.
_LAUNCHERS = (
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NUMBER = re.compile("[0-9]{1,9}")


def detect(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The launcher and this process' rank and size; None if it was started by hand, also in a shell of srun's."""
    for launcher, rank, size in _LAUNCHERS:
        if _NUMBER.fullmatch(environ.get(rank, "")) and _NUMBER.fullmatch(environ.get(size, "")):
            if launcher == "srun" and int(environ[size]) == 1:  # such as srun --pty bash: its commands inherit these
                return None
            return _in_group(launcher, int(environ[rank]), int(environ[size]), environ.get(GROUPS, ""))
    return None


def _in_group(launcher: str, rank: int, size: int, groups: str) -> Launch:
    """groups: without effect where it does not fit, which check_groups() tells."""
    first = 0
    for count in group_sizes(groups, size) or [size]:
        if rank < first + count:
            return Launch(launcher, rank - first, count, first, size)
        first += count
    return Launch(launcher, rank, size, 0, size)


def group_sizes(text: str, ranks: int) -> list[int]:
    """The numbers of "2,2"; none if they are not those of so many ranks."""
    counts = [int(word) if _NUMBER.fullmatch(word) else 0 for word in text.split(",")]
    return counts if all(counts) and sum(counts) == ranks else []


def check_groups(launch: Launch, environ: Mapping[str, str] = os.environ) -> None:
    """Raises CommError where ENGINE_GROUPS is not for as many ranks as there are."""
    text = environ.get(GROUPS, "")
    if text and not group_sizes(text, launch.job_size):
        raise CommError(f"{GROUPS}={text}: expected numbers of ranks, separated by commas, of {launch.job_size} in all")


def is_spokesman() -> bool:
    """For errors that all ranks meet before they know of each other: whether this one is to tell. The others return
    late, for a launcher may end all ranks with the first."""
    launch = detect()
    if launch is None or launch.rank == 0:
        return True
    time.sleep(LAUNCHER_KILLS_AFTER)
    return False


def speaks_for_host(environ: Mapping[str, str] = os.environ) -> bool:
    """Of ranks that are left when is_spokesman() has returned late: whether this one is to tell, too. Where srun has
    started them, which leaves all of them, it is the first of each host."""
    return environ.get("SLURM_LOCALID", "0") == "0"


def end_all(status: int, environ: Mapping[str, str] = os.environ) -> None:
    """Has the launcher end all ranks, for an error that this one meets before MPI is up. The mpiexec of MPICH and of
    Intel MPI would not miss a rank that leaves with a status of its own, and the others would wait for it in MPI_Init:
    it is asked in the words of its own protocol, PMI. Other launchers miss the rank by themselves, or miss none."""
    with contextlib.suppress(KeyError, ValueError, OSError):
        connection = int(environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(connection).st_mode):  # or it was closed, and the number is another file's
            os.write(connection, b"cmd=abort exitcode=%d\n" % status)


# Open MPI refuses more ranks than cores, unless told (version 4, version 5), and then spins. The others do not mind.
OVERSUBSCRIBE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def mpiexec() -> str | None:
    """The mpiexec beside this Python, whose library mpi4py then finds, too; else the one in PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def own_command(*arguments: str) -> list[str]:
    """Returns the command line of `engine arguments...`: this engine, by the path of its file. Python's option -m would
    put the current folder first on the import path, and a ./numpy.py beside the data would be imported."""
    return [sys.executable, str(Path(engine.__file__).with_name("__main__.py")), *arguments]


def command_for(ranks: int, arguments: Sequence[str]) -> list[str]:
    """To run `engine arguments...` on so many ranks of this host. Raises CommError where that needs mpiexec, and for
    more ranks than the host can bear."""
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
