"""Divides the cores of a host among its ranks, unless the user or the launcher has done so."""

from __future__ import annotations

import functools
import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.errors import ranges_text
from engine.host.groups import processor_limit
from engine.host.ranks import gather_everywhere

if TYPE_CHECKING:
    from engine.host.ranks import Ranks

# How long an idle thread of libgomp spins before it sleeps where the ranks of a host have fewer cores than threads:
# libgomp's own value for that, which it takes only where one process has too many. With two ranks of two threads on two
# cores, the forward pass of a small net takes 1 ms so, and 7 with the usual value, 300 times as large. Where the cores
# suffice the usual one stays: threads would sleep in nearly every op, and to wake them costs 1 to 2% of a step.
CROWDED_SPIN_COUNT = "1000"


# Variables of Intel's OpenMP and MKL, which recipes for Caffe set, and what does the same here.
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
    """Sets OMP_NUM_THREADS so that the ranks of a host do not compute on the same cores, and GOMP_SPINCOUNT where they
    and their communication servers do all the same; neither if the user has set it.

    To be called before the extension is loaded, and with it libgomp, which reads them once. everyone: World.places().
    """
    mine = host_and_cores()
    fitting = threads_for(mine, everyone, cores_at_once())
    given = os.environ.setdefault("OMP_NUM_THREADS", str(fitting)).split(",")[0].strip()
    threads = int(given) if given.isdecimal() else len(mine[1])
    threads += len(everyone) > 1  # a server at least
    if threads * everyone.count(mine) > cores_at_once() and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", CROWDED_SPIN_COUNT)


@functools.cache
def own_cores() -> tuple[int, ...]:
    """The cores that this process was given. With OMP_PROC_BIND libgomp then binds the first thread to fewer, which
    threads that it starts inherit: hence asked once, before."""
    return tuple(sorted(os.sched_getaffinity(0)))


def keep_within_limit() -> None:
    """share_cores() for a program with one rank, whose threads would else be as many as its cores."""
    if cores_at_once() < len(own_cores()):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores_at_once()))


@functools.cache
def cores_at_once() -> int:
    """How many of them this process may keep busy: fewer where its container has a limit of processor time."""
    return max(1, math.floor(min(len(own_cores()), processor_limit())))


def helper_cores() -> tuple[int, ...]:
    """For threads that do not compute: the cores to which OpenMP binds no thread that does, all if there are no others;
    () where it binds none. To be called by the thread that computes, for it makes its team of threads.
    """
    from engine.host import _core

    cores, bound = own_cores(), set(_core.bound_cores())
    return (tuple(sorted(set(cores) - bound)) or cores) if bound else ()


def sit_on(cores: Sequence[int]) -> None:
    """Pins the calling thread; () leaves it where it is."""
    if cores:
        os.sched_setaffinity(0, cores)


def host_and_cores() -> tuple[str, tuple[int, ...]]:
    """This rank's host name and cores."""
    return platform.node(), own_cores()


def all_hosts_and_cores(world: Ranks) -> list[tuple[str, tuple[int, ...]]]:
    """Collective. (host, cores) of all ranks, in order."""
    return gather_everywhere(world, host_and_cores())


def threads_for(mine: tuple[str, tuple[int, ...]], everyone: list[tuple[str, tuple[int, ...]]], at_once: int) -> int:
    """Threads of a rank: its cores, or as many as may be busy `at_once`, divided by the number of ranks that share the
    same ones."""
    return max(1, min(len(mine[1]), at_once) // everyone.count(mine))


def fewest_cores(everyone: list[tuple[str, tuple[int, ...]]]) -> int:
    """Of the rank that has the fewest, divided as for threads_for(): a number that all ranks agree about."""
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
    """Who runs where on this rank, as a line for the log, and a warning, or "".

    mine, everyone: as for threads_for. threads: that compute, per rank. servers: for communication, on server_cores or
    where the system puts them. decoders: data threads; they sleep unless batches are missing. bound: the cores to which
    OpenMP binds the threads that compute.
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


def clash(world: Ranks) -> str:
    """Collective. A warning where OpenMP binds the threads of two ranks to the same core, or ""."""
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
