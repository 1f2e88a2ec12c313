"""Divides the cores of a host among its ranks, unless the user or the launcher has done so."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.comm.world import World

# How long an idle thread of libgomp spins before it sleeps: libgomp's own value for oversubscribed cores (here they
# also run communication servers, decoding threads, other ranks); its default is 300 times that. With two ranks of two
# threads on two cores, the forward pass of a small net takes 1.5 ms instead of 280.
SPIN_COUNT = "1000"


def limit_spinning() -> None:
    """Sets GOMP_SPINCOUNT. To be called before libgomp is loaded, which reads the variable once."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def share_cores(world: World) -> None:
    """Collective. Sets OMP_NUM_THREADS, unless it is set, so that the ranks of a host do not compute on the same cores.

    To be called before the extension is loaded.
    """
    mine, everyone = host_and_cores(), all_hosts_and_cores(world)
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads_for(mine, everyone))


def host_and_cores() -> tuple[str, tuple[int, ...]]:
    """This rank's host name and the cores that its affinity mask allows."""
    return platform.node(), tuple(sorted(os.sched_getaffinity(0)))


def all_hosts_and_cores(world: World) -> list[tuple[str, tuple[int, ...]]]:
    """Collective. (host, cores) of all ranks, in order."""
    return world.broadcast_object(world.gather(host_and_cores()))


def threads_for(mine: tuple[str, tuple[int, ...]], everyone: list[tuple[str, tuple[int, ...]]]) -> int:
    """Threads of a rank: its cores, divided by the number of ranks that are allowed the same ones."""
    return max(1, len(mine[1]) // everyone.count(mine))


def core_plan(
    mine: tuple[str, tuple[int, ...]],
    everyone: list[tuple[str, tuple[int, ...]]],
    *,
    threads: int,
    servers: int,
    server_cores: tuple[int, ...] | None,
    decoders: int,
) -> tuple[str, str]:
    """Who runs where on this rank, as a line for the log, and a warning, or "".

    mine, everyone: as for threads_for. threads: that compute, per rank. servers: for communication, on server_cores or
    where the system puts them. decoders: data threads; they sleep unless batches are missing.
    """
    cores, sharers = mine[1], everyone.count(mine)
    where = f"pinned to {ranges(server_cores)}" if server_cores else "not pinned"
    parts = [_count(threads, "compute thread")]
    parts += [f"{_count(servers, 'communication server')} ({where})"] if servers else []
    parts += [_count(decoders, "decoding thread")] if decoders else []
    among = f", shared by {sharers} ranks" if sharers > 1 else ""
    line = f"Cores {ranges(cores)}{among}; on this rank {', '.join(parts)}"
    computing = threads * sharers
    if computing > len(cores):
        fit = max(1, len(cores) // sharers)
        return line, f"{computing} compute threads on {len(cores)} cores slow each other down: OMP_NUM_THREADS={fit}"
    if servers and (computing == len(cores) or not set(server_cores or cores) - set(cores[:computing])):
        spare = max(1, threads - 1)
        return line, (
            "communication servers share cores with compute threads; if there are many cores, leave some free: "
            f"OMP_NUM_THREADS={spare} and comm_param {{ affinity }}"
        )
    return line, ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
