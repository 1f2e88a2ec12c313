"""Tells what this machine offers to a rank."""

from __future__ import annotations

import math
import os
import platform
from typing import Any

from engine.errors import ranges_text
from engine.host.cores import cores_at_once, own_cores
from engine.host.groups import processor_limit
from engine.host.machine import memory, processor
from engine.host.memory import available_memory
from engine.report.table import human, table


def device() -> dict[str, Any]:
    """Returns the processor, cores, memory and libraries that this rank has. "mpi" is None without an MPI library,
    "processor_limit" (seconds in a second) without a limit."""
    cores, limit = list(own_cores()), processor_limit()
    from engine.comm.mpi_world import mpi_library
    from engine.host import _core

    return {
        "host": platform.node(),
        "processor": processor(),
        "cores_of_machine": os.cpu_count(),
        "cores_allowed": cores,
        "processor_limit": limit if math.isfinite(limit) else None,
        "threads": _core.threads() if "OMP_NUM_THREADS" in os.environ else cores_at_once(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "memory_bytes": memory(),
        "memory_available_bytes": available_memory(),
        "onednn": _core.onednn_version(),
        "isa": _core.onednn_isa(),
        "mpi": mpi_library(),
        "python": platform.python_version(),
    }


def to_text(found: dict[str, Any]) -> str:
    """Returns a table for people."""
    cores = found["cores_allowed"]
    limit = found["processor_limit"]
    limited = f", and processor time of {limit:g} in a control group" if limit and limit < len(cores) else ""
    available = f"{human(found['memory_available_bytes'], 'B')} of {human(found['memory_bytes'], 'B')} available"
    rows = [
        ("host", found["host"]),
        ("processor", found["processor"]),
        ("cores", f"{len(cores)} of {found['cores_of_machine']}: {ranges_text(cores)}{limited}"),
        ("threads per rank", f"{found['threads']} (OMP_NUM_THREADS {found['omp_num_threads'] or 'not set'})"),
        ("memory", available),
        ("oneDNN", f"{found['onednn']}, {found['isa']}"),
        ("MPI", found["mpi"] or "none: pip install mpi4py and mpich, or load the cluster's MPI module"),
        ("Python", found["python"]),
    ]
    return table(("what", "found"), rows, "<<")
