"""Divides the cores of a host among its ranks, unless the user or the launcher has done so."""

from __future__ import annotations

import functools
import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.errors import ranges_text
from engine.host.groups import processor_limit
from engine.host.ranks import gather_everywhere

if TYPE_CHECKING:
    from engine.host.ranks import Ranks

# How often an idle thread of libgomp spins before it sleeps, where the ranks of a host have more threads than cores.
# libgomp has the same value for one process with too many threads, but does not know of other ranks. With two ranks of
# two threads on two cores, the forward pass of a small net takes 1 ms with it, and 7 ms with the usual value, which is
# 300 times as large. The usual one stays where the cores suffice: with this one threads would sleep in nearly every op,
# and to wake them costs 1 to 2% of a step.
CROWDED_SPIN_COUNT = "1000"


# What keep_within_limit() has set OMP_NUM_THREADS to: the user has not.
_limited: list[str] = []

# Variables of Intel's OpenMP and MKL that recipes for Caffe set, and what to set here for the same effect.
OTHERS_VARIABLES = {
    "KMP_AFFINITY": "set OMP_PROC_BIND=close and OMP_PLACES=cores",
    "KMP_PLACE_THREADS": "set OMP_PLACES and OMP_NUM_THREADS",
    "KMP_HW_SUBSET": "set OMP_PLACES and OMP_NUM_THREADS",
    "KMP_BLOCKTIME": "set OMP_WAIT_POLICY or GOMP_SPINCOUNT",
    "MKL_NUM_THREADS": "set OMP_NUM_THREADS",
    "MKL_DYNAMIC": "set OMP_DYNAMIC",
}


def ignored_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns a line for each variable of Intel's OpenMP and MKL that has no effect here, with what to set instead."""
    why = "is ignored: engine computes with GNU OpenMP"
    return [f"{name} {why}; {instead}" for name, instead in OTHERS_VARIABLES.items() if name in environ]


def share_cores(everyone: list[tuple[str, tuple[int, ...]]]) -> None:
    """Sets OMP_NUM_THREADS so that the ranks of a host do not compute on the same cores; also GOMP_SPINCOUNT, if they
    and their communication servers still have more threads than cores. Leaves what the user has set.

    Call it before the extension is loaded where that is possible: libgomp, which comes with it, reads both variables
    once. In a script that has loaded it already, the calling thread's team gets its number of threads all the same.

    Args:
        everyone: the host and the cores of each rank, as from all_hosts_and_cores().
    """
    mine = host_and_cores()
    fitting = threads_for(mine, everyone, cores_at_once())
    if _limited and os.environ.get("OMP_NUM_THREADS") == _limited.pop():
        del os.environ["OMP_NUM_THREADS"]
    if "OMP_NUM_THREADS" not in os.environ and "engine.host._core" in sys.modules:
        sys.modules["engine.host._core"].set_threads(fitting)
    given = os.environ.setdefault("OMP_NUM_THREADS", str(fitting)).split(",")[0].strip()
    threads = int(given) if given.isdecimal() else len(mine[1])
    threads += len(everyone) > 1  # with other ranks, there is a communication server at least
    if threads * everyone.count(mine) > cores_at_once() and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", CROWDED_SPIN_COUNT)


@functools.cache
def own_cores() -> tuple[int, ...]:
    """Returns the cores that this process was given, as they were at the first call. With OMP_PROC_BIND libgomp later
    binds the main thread, and so those that it starts, to fewer: call it before the extension is loaded."""
    return tuple(sorted(os.sched_getaffinity(0)))


def keep_within_limit() -> None:
    """Sets OMP_NUM_THREADS, unless the user has, for a script in a container with a limit of processor time: libgomp
    would start a thread for each core. If the script has several ranks, share_cores() divides them later."""
    if cores_at_once() < len(own_cores()) and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(cores_at_once())
        _limited.append(os.environ["OMP_NUM_THREADS"])


@functools.cache
def cores_at_once() -> int:
    """Returns how many of own_cores() this process may keep busy, at least 1: fewer than all if its container has a
    limit of processor time."""
    return max(1, math.floor(min(len(own_cores()), processor_limit())))


def helper_cores() -> tuple[int, ...]:
    """Returns the cores for threads that do not compute: those to which OpenMP binds no compute thread, or all cores if
    there are no others; () if OpenMP binds no threads.

    Call it from the thread that will compute, for the call makes that thread's OpenMP team."""
    from engine.host import _core

    cores, bound = own_cores(), set(_core.bound_cores())
    return (tuple(sorted(set(cores) - bound)) or cores) if bound else ()


def pin_thread(cores: Sequence[int]) -> None:
    """Pins the calling thread to these cores; () leaves it where it is."""
    if cores:
        os.sched_setaffinity(0, cores)


def host_and_cores() -> tuple[str, tuple[int, ...]]:
    """Returns the name of this rank's host, and its cores."""
    return platform.node(), own_cores()


def all_hosts_and_cores(world: Ranks) -> list[tuple[str, tuple[int, ...]]]:
    """Collective. Returns (host, cores) of each rank, in the order of ranks."""
    return gather_everywhere(world, host_and_cores())


def threads_for(mine: tuple[str, tuple[int, ...]], everyone: list[tuple[str, tuple[int, ...]]], at_once: int) -> int:
    """Returns how many threads a rank computes with, at least 1: one for each of its cores, but not more than may be
    busy `at_once`, divided by the number of ranks that have the same cores.

    Args:
        mine: this rank's host_and_cores().
        everyone: those of all ranks.
        at_once: see cores_at_once().
    """
    return max(1, min(len(mine[1]), at_once) // everyone.count(mine))


def fewest_cores(everyone: list[tuple[str, tuple[int, ...]]]) -> int:
    """Returns the number of cores of the rank that has the fewest, where ranks with the same cores divide them. All
    ranks get the same number."""
    return min(max(1, len(cores) // sharers) for (_, cores), sharers in Counter(everyone).items())


def core_plan(
    mine: tuple[str, tuple[int, ...]],
    everyone: list[tuple[str, tuple[int, ...]]],
    *,
    threads: int,
    servers: int,
    server_cores: tuple[int, ...] | None,
    decoders: int,
    bound: Sequence[int] = (),
) -> tuple[str, str]:
    """Returns a line for the log that says which threads run on which cores of this rank, and a warning, or "".

    Args:
        mine, everyone: see threads_for().
        threads: compute threads of each rank.
        servers: communication servers of each rank.
        server_cores: the cores to which these are pinned; None or (): they are not.
        decoders: threads that decode data; they sleep unless batches are missing.
        bound: the cores to which OpenMP binds the compute threads; (): none.
    """
    cores, sharers = mine[1], everyone.count(mine)
    spare = sorted(set(cores) - set(bound)) if bound else []
    helpers = f" (on {ranges_text(spare)})" if spare else ""
    where = f" (pinned to {ranges_text(server_cores)})" if server_cores else helpers or " (not pinned)"
    kinds = [_count(threads, "compute thread") + (f" (bound to {ranges_text(bound)})" if bound else "")]
    kinds += [_count(servers, "communication server") + where] if servers else []
    kinds += [_count(decoders, "decoding thread") + helpers] if decoders else []
    among = f", shared by {sharers} ranks" if sharers > 1 else ""
    line = f"Cores {ranges_text(cores)}{among}; on this rank {', '.join(kinds)}"
    computing = threads * sharers
    if computing > len(cores):
        fit = len(cores) // sharers
        advice = f"OMP_NUM_THREADS={fit}" if fit else f"start {_count(len(cores), 'rank')} at most on this host"
        return line, f"{computing} compute threads on {len(cores)} cores slow each other down: {advice}"
    if servers and (computing == len(cores) or not set(server_cores or cores) - set(bound or cores[:computing])):
        advice = f"OMP_NUM_THREADS={threads - 1}" if threads > 1 else "start fewer ranks"
        return line, (
            "communication servers share cores with compute threads; if there are many cores, leave some free: "
            f"{advice}"
        )
    return line, ""


def clash_warning(world: Ranks) -> str:
    """Collective. Returns a warning if OpenMP binds threads of two ranks to the same core, else ""."""
    from engine.host import _core

    mine = platform.node(), tuple(_core.bound_cores())
    taken: dict[tuple[str, int], int] = {}
    for rank, (host, cores) in enumerate(gather_everywhere(world, mine)):
        for core in cores:
            first = taken.setdefault((host, core), rank)
            if first != rank:
                return (
                    f"ranks {first} and {rank} both compute on core {core} of {host}, to which OMP_PROC_BIND binds "
                    "them: let the launcher give each rank its cores (srun --cpus-per-task, mpiexec -bind-to), or "
                    "unset OMP_PROC_BIND"
                )
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
