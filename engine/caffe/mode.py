"""caffe.set_mode_cpu, set_device, set_random_seed and the like: settings of the process."""

from __future__ import annotations

import warnings

_DEFAULT_SEED = 1
_seed: int | None = None


def set_random_seed(seed: int) -> None:
    """Sets the seed of fillers and dropout for nets made from now on, and for solvers whose files have no
    random_seed."""
    global _seed
    _seed = int(seed)


def has_seed() -> bool:
    return _seed is not None


def seed() -> int:
    return _DEFAULT_SEED if _seed is None else _seed


def set_mode_cpu() -> None:
    """Does nothing: there is no other mode."""


def set_mode_gpu() -> None:
    warnings.warn("this engine computes on CPUs only; set_mode_gpu() is ignored", stacklevel=2)


def set_device(device: int) -> None:
    """Ignored: threads and cores are chosen by OMP_NUM_THREADS and the launcher."""


def set_multiprocess(multiprocess: bool) -> None:
    """Ignored: ranks come from mpiexec."""


def set_solver_count(count: int) -> None:
    """Ignored: ranks come from mpiexec."""


def set_solver_rank(rank: int) -> None:
    """Ignored: ranks come from mpiexec."""
