"""Which launcher started this process, from the environment alone: no MPI is loaded to find out. And a launcher for
verbs that start ranks themselves."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import engine
from engine.errors import CommError

LAUNCHER_KILLS_AFTER = 1.0  # seconds: before, rank 0 has printed what all ranks would


@dataclass(frozen=True)
class Launch:
    launcher: str
    rank: int
    size: int


# Launcher, its variables for rank and size. SLURM_STEP_NUM_TASKS is set by srun only: SLURM_NTASKS is also there in a
# batch script that runs one process. Open MPI comes first, its mpiexec may itself run under srun.
_LAUNCHERS = (
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NUMBER = re.compile("[0-9]{1,9}")


def detect(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The launcher and this process' rank and size; None if it was started by hand."""
    for launcher, rank, size in _LAUNCHERS:
        if _NUMBER.fullmatch(environ.get(rank, "")) and _NUMBER.fullmatch(environ.get(size, "")):
            return Launch(launcher, int(environ[rank]), int(environ[size]))
    return None


def is_spokesman() -> bool:
    """For errors that all ranks meet before they know of each other: whether this one is to tell. The others return
    late, for a launcher may end all ranks with the first."""
    launch = detect()
    if launch is None or launch.rank == 0:
        return True
    time.sleep(LAUNCHER_KILLS_AFTER)
    return False


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
    """To run `engine arguments...` on so many ranks of this host. Raises CommError where that needs mpiexec."""
    command = own_command(*arguments)
    if ranks == 1:
        return command
    launcher = mpiexec()
    if launcher is None:
        raise CommError(f"{ranks} ranks need mpiexec: pip install mpich, or load the cluster's module")
    return [launcher, "-n", str(ranks), *command]


def run_ranks(ranks: int, arguments: Sequence[str]) -> int:
    """Runs `engine arguments...` on so many ranks of this host; its exit status. Raises CommError without mpiexec."""
    command = command_for(ranks, arguments)
    return subprocess.run(command, env={**OVERSUBSCRIBE, **os.environ}, stdin=subprocess.DEVNULL).returncode
