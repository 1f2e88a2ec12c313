"""The control groups that hold this process, by which containers and Slurm limit what it may take of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yields the folder and the version (1 or 2) of each group that may limit this process: first its own, then those
    above. A folder may not exist: a container sees its own group as the topmost.

    Args:
        controller: the kind of limit, such as "memory".
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, root = 2, CGROUPS
        elif controller in controllers.split(","):
            version, root = 1, CGROUPS / controller
        else:
            continue
        own = root / path.lstrip("/")
        yield from ((folder, version) for folder in (own, *own.parents) if folder.is_relative_to(root))


def processor_limit() -> float:
    """Returns the seconds of processor time that this process, and others in its groups, may take in a second, as set
    by `docker run --cpus` or a limit in Kubernetes; inf without a limit."""
    return min((_processor_limit(*group) for group in groups("cpu")), default=math.inf)


def _processor_limit(folder: Path, version: int) -> float:
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group here
        return math.inf
