"""What this machine offers to a rank."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from engine.host.cores import own_cores, ranges
from engine.report.table import human, table


def device() -> dict[str, Any]:
    """Processor, cores, memory, libraries; None for what cannot be found out."""
    cores = list(own_cores())
    from engine.comm.mpi_world import mpi_library
    from engine.host import _core

    return {
        "host": platform.node(),
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "cores_of_machine": os.cpu_count(),
        "cores_allowed": cores,
        "threads": _core.threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "memory_bytes": _kilobytes("MemTotal"),
        "memory_available_bytes": _kilobytes("MemAvailable"),
        "onednn": _core.onednn_version(),
        "isa": _core.onednn_isa(),
        "mpi": mpi_library(),
        "python": platform.python_version(),
    }


def to_text(found: dict[str, Any]) -> str:
    """For people."""
    cores = found["cores_allowed"]
    available = f"{human(found['memory_available_bytes'], 'B')} of {human(found['memory_bytes'], 'B')} available"
    rows = [
        ("host", found["host"]),
        ("processor", found["processor"]),
        ("cores", f"{len(cores)} of {found['cores_of_machine']}: {ranges(cores)}"),
        ("threads per rank", f"{found['threads']} (OMP_NUM_THREADS {found['omp_num_threads'] or 'not set'})"),
        ("memory", available if found["memory_bytes"] else "unknown"),
        ("oneDNN", f"{found['onednn']}, {found['isa']}"),
        ("MPI", found["mpi"] or "none: pip install mpi4py and mpich, or load the cluster's MPI module"),
        ("Python", found["python"]),
    ]
    return table(("what", "found"), rows, "<<")


def _first_value(path: str, name: str) -> str | None:
    """What follows `name :` in a file of the kernel."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(name)), None)
    except OSError:
        return None


def _kilobytes(name: str) -> int | None:
    value = _first_value("/proc/meminfo", name)
    return int(value.split()[0]) * 1024 if value else None
