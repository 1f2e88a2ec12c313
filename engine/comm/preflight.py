"""Checks before iteration 0 that the ranks belong to one run. A difference is an error of one line that names two
ranks.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import engine
from engine.comm.world import difference
from engine.errors import CommError, DataError, EngineError, ranges_text
from engine.host.cores import all_hosts_and_cores
from engine.report.log import log, warn

if TYPE_CHECKING:
    from engine.comm.world import World

SUMMED = 4096  # floats of check_sum()


def preflight(world: World, texts: dict[str, str]) -> None:
    """Collective. Compares versions and texts, checks a sum over the ranks, and logs where the ranks are.

    texts: what every rank has read, by the words that messages use for it. Raises CommError on every rank if versions
    or texts differ, or if the sum is wrong.
    """
    if world.size == 1:
        return
    compare(world, versions(world) | texts)
    check_sum(world)
    line, warning = describe_hosts([host for host, _ in all_hosts_and_cores(world)])
    log(f"Ranks: {line}; versions, solver and nets are the same on all of them")
    if warning and world.rank == 0:
        warn(warning)


def versions(world: World) -> dict[str, str]:
    """Returns the versions that must be the same on all ranks, so that they compute the same and understand each
    other."""
    from engine.host import _core

    return {
        "engine": engine_version(),
        "oneDNN": _core.onednn_version(),
        "MPI": world.library(),
        "Python": platform.python_version(),
        "numpy": np.__version__,
    }


def engine_version() -> str:
    """Returns the version and a hash of the installed code, such as "0.1.0, code 1a2b3c4d": checkouts change while the
    version stays."""
    folder, code = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.glob("host/_ext*.so")]):
        code.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{engine.__version__}, code {code.hexdigest()[:8]}"


def compare_data(world: World, identities: Callable[[], dict[str, str]]) -> None:
    """Collective. Raises DataError if a rank has other data than rank 0: all are to read shares of the same.

    identities: returns what must be the same, by the words that messages use for it; not called if there is one rank.
    """
    if world.size > 1:
        compare(world, identities(), DataError, width=100)


def compare(world: World, facts: dict[str, str], kind: type[EngineError] = CommError, width: int = 40) -> None:
    """Collective. Compares facts over the ranks. Raises an error of the type `kind` that names two ranks, their hosts,
    and the first fact that differs, with `width` characters of each rank's."""
    digests = {what: hashlib.sha256(value.encode(errors="surrogatepass")).digest() for what, value in facts.items()}
    everyone = world.gather((platform.node(), digests))
    found = world.broadcast_object(_first_difference(everyone) if everyone else None)
    if found is None:
        return
    what, rank, host, other_host = found
    first, second = world.broadcast_object(facts[what]), world.broadcast_object(facts.get(what, ""), rank)
    raise kind(
        f"preflight: rank 0 (on {host}) and rank {rank} (on {other_host}) differ in {what}: "
        f"{difference(first, second, width)}"
    )


def _first_difference(everyone: list[tuple[str, dict[str, bytes]]]) -> tuple[str, int, str, str] | None:
    """Returns (fact, rank, rank 0's host, the rank's host) of the first fact in which a rank differs from rank 0."""
    host, digests = everyone[0]
    for what, digest in digests.items():
        for rank, (other_host, others) in enumerate(everyone):
            if others.get(what) != digest:
                return what, rank, host, other_host
    return None


def check_sum(world: World) -> None:
    """Collective. Sums numbers whose sum float32 holds exactly. Raises CommError if the result is another one."""
    pattern = np.arange(SUMMED, dtype=np.float32) % 8
    values = pattern + world.rank
    world.allreduce(values)
    expected = world.size * pattern + world.size * (world.size - 1) // 2
    wrong = np.flatnonzero(values != expected)
    text = f"element {wrong[0]} is {values[wrong[0]]:g} instead of {expected[wrong[0]]:g}" if wrong.size else ""
    found = world.broadcast_object(_first_of(world.gather(text)))
    if found:
        raise CommError(f"preflight: a sum over {world.size} ranks came out wrong on rank {found[0]}: {found[1]}")


def _first_of(texts: list[str] | None) -> tuple[int, str] | None:
    """Returns the first rank whose text is not empty, and the text."""
    return next(((rank, text) for rank, text in enumerate(texts or []) if text), None)


def describe_hosts(names: list[str]) -> tuple[str, str]:
    """Returns a line that tells which ranks are on which host, and a warning if hosts have different numbers of ranks,
    else "". names: the host of each rank."""
    by_host: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        by_host.setdefault(name, []).append(rank)
    places = [f"{name}: {ranges_text(ranks)}" for name, ranks in by_host.items()]
    shown = "; ".join(places if len(places) <= 8 else [*places[:3], "...", places[-1]])
    line = f"{len(names)} on {len(by_host)} host{'s' if len(by_host) > 1 else ''} ({shown})"
    least, most = (choose(by_host, key=lambda name: len(by_host[name])) for choose in (min, max))
    if len(by_host[least]) == len(by_host[most]):
        return line, ""
    return line, (
        f"{most} has {len(by_host[most])} ranks and {least} has {len(by_host[least])}: "
        "they share their cores and links unevenly"
    )
