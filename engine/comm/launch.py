"""Which launcher started this process, from the environment alone: no MPI is loaded to find out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


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


def detect(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The launcher and this process' rank and size; None if it was started by hand."""
    for launcher, rank, size in _LAUNCHERS:
        if environ.get(rank, "").isdigit() and environ.get(size, "").isdigit():
            return Launch(launcher, int(environ[rank]), int(environ[size]))
    return None
