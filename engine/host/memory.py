"""How much memory this process may still take, so that a plan that is too large is refused before it is touched: the
system would end the process, or another one, without a word."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from engine.errors import EngineError
from engine.host.groups import groups

SMALLER_BATCH = "lower batch_size and raise iter_size, or give --memory_budget"
SMALL = 1 << 24  # bytes that nobody asks for
_share: list[int] = []  # bytes, of all that this process may ever take


def divide_memory(ranks: int) -> None:
    """Gives each of the ranks of this host an equal part of what is available now: before any of them takes its own,
    for those who come later would find less."""
    _share[:] = [_resident() + available_memory() // ranks]


def free_memory() -> int:
    """Returns the bytes that this process may still take."""
    free = [available_memory(), *(share - _resident() for share in _share)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(limit - _pages(0))
    return max(0, min(free))


def with_margin(needed: int) -> int:
    """Returns the bytes with a twentieth more: for the kernels' scratch, and for what others take meanwhile."""
    return needed + needed // 20


def require_memory(needed: int, what: str, advice: str, where: str | None = None) -> None:
    """Raises EngineError where more bytes are needed, with_margin(), than are free. what: needs them. where: the place
    of what needs most of them."""
    if needed <= SMALL:
        return
    needed, free = with_margin(needed), free_memory()
    if needed > free:
        raise EngineError(f"{what} needs {size_text(needed)}, {size_text(free)} are free: {advice}", where)


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """Within it this process may take so many more bytes: a library that a damaged file tells to take all that there is
    gets none. For the main thread alone, while no other takes much; in others it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = limit_data(_pages(5) + more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_data(count: int) -> tuple[int, int]:
    """Lets this process have so many bytes of its own, or as many as it might before, if these are fewer; returns the
    limits before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = count if soft == resource.RLIM_INFINITY else min(count, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return soft, hard


def size_text(count: int) -> str:
    """31_800_000_000 -> "31.8 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _pages(column: int) -> int:
    """Bytes, from the columns of proc(5), statm: 0, the addresses of this process; 1, what is resident of it; 5, what
    is its own and can be written."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")


def _resident() -> int:
    return _pages(1)


def available_memory() -> int:
    """Returns the bytes that are free of the machine, or of the least of the control groups that hold this process:
    containers and Slurm set them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """Of each group above this process that has a limit; what the system can take back from caches of files is left."""
    for folder, version in groups("memory"):
        if version == 2:
            yield from _left_in(folder, "memory.max", "memory.current", ("inactive_file", "active_file"))
        else:
            caches = "total_inactive_file", "total_active_file"
            yield from _left_in(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", caches)


def _left_in(folder: Path, limit: str, usage: str, caches: tuple[str, str]) -> Iterator[int]:
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        if most != "max":
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield int(most) - used + sum(int(counts.get(name, 0)) for name in caches)
    except (OSError, ValueError):  # no such group here, as in a container
        pass
