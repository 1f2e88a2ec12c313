"""How much memory this process may still take. A plan that needs more is refused before its memory is touched: else the
system would end this process, or another one, without a word."""

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
SMALL = 1 << 24  # bytes; plans of less are not checked
_share: list[int] = []  # bytes that this rank may have in all; empty until divide_memory()


def divide_memory(ranks: int) -> None:
    """Gives this rank an equal share of the memory that is available now, beside what it has already.

    Args:
        ranks: of this host. They all call it before any of them makes a plan: later ones would find less.
    """
    _share[:] = [_resident() + available_memory() // ranks]


def free_memory() -> int:
    """Returns the bytes that this process may still take."""
    free = [available_memory(), *(share - _resident() for share in _share)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(limit - _pages(0))
    return max(0, min(free))


def with_margin(needed: int) -> int:
    """Returns `needed` bytes and a twentieth more: for the kernels' scratch, and for what other processes take
    meanwhile."""
    return needed + needed // 20


def require_memory(needed: int, what: str, advice: str, where: str | None = None) -> None:
    """Raises EngineError if with_margin(needed) is more than free_memory().

    Args:
        needed: bytes.
        what: needs them, as the subject of the message.
        advice: what to do about it.
        where: file:line of what needs most of them.
    """
    if needed <= SMALL:
        return
    needed, free = with_margin(needed), free_memory()
    if needed > free:
        raise EngineError(f"{what} needs {size_text(needed)}, {size_text(free)} are free: {advice}", where)


@contextlib.contextmanager
def allowing_memory(more: int) -> Iterator[None]:
    """Lets this process take no more than so many bytes more in the block, so that a library which a damaged file tells
    to take far too much fails to. The limit holds for all threads: it is for calls from the main thread while no other
    takes much, and does nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = limit_data(_pages(5) + more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_data(count: int) -> tuple[int, int]:
    """Limits the writable memory of this process (RLIMIT_DATA) to `count` bytes, unless its limit is lower already.
    Returns the limits (soft, hard) from before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = count if soft == resource.RLIM_INFINITY else min(count, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return soft, hard


def size_text(count: int) -> str:
    """Returns "31.8 GB" for 31_800_000_000."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _pages(column: int) -> int:
    """Returns bytes from a column of proc(5), statm: 0, the address space of this process; 1, its resident memory; 5,
    its writable memory."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")


def _resident() -> int:
    return _pages(1)


def available_memory() -> int:
    """Returns the bytes that the machine has available, or less if a control group that holds this process (of a
    container, or of Slurm) has less left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """Yields the bytes left in each control group of this process that has a limit. Caches of files count as left, for
    the system can take them back."""
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
