"""Divides the cores of a host among its ranks, where the user has not done it."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.comm.world import World

# How long an idle thread of libgomp spins before it sleeps: libgomp's own figure for cores that others need, too (here
# communication servers, decoding threads, other ranks). Its default is 300 times that. Two ranks of two threads on two
# cores, a small net: 1.5 ms for a forward pass instead of 280.
SPIN_COUNT = "1000"


def limit_spinning() -> None:
    """To be called before anything loads libgomp, which reads the variable once."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def share_cores(world: World) -> None:
    """Collective. Sets OMP_NUM_THREADS, unless it is set, so that the ranks of a host do not compute on the same cores.

    To be called before the extension is loaded.
    """
    cores = tuple(sorted(os.sched_getaffinity(0)))
    everyone = world.broadcast_object(world.gather((platform.node(), cores)))
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads_for((platform.node(), cores), everyone))


def threads_for(mine: tuple[str, tuple[int, ...]], everyone: list[tuple[str, tuple[int, ...]]]) -> int:
    """Threads of a rank, from the (host, cores) of all ranks: those that a launcher has pinned apart share nothing."""
    return max(1, len(mine[1]) // everyone.count(mine))
