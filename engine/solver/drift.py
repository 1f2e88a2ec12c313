"""Checks that all ranks still have bit-identical weights and optimizer state: after the start these are never sent."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import CommError, ranges_text

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.net import Net

DIGEST_BYTES = 8


def check_drift(
    world: World, net: Net, weights: np.ndarray, histories: Mapping[str, np.ndarray], iteration: int
) -> None:
    """Compares digests of weights and histories over the ranks. Takes about a second for each GB.

    Collective, when no update is under way. weights: the arena, float32. histories: arenas of the same layout, by what
    they hold. Raises CommError on every rank; it names the first blob, in the order of the file, that differs, and the
    ranks whose values are not those of the majority.
    """
    if world.size == 1:
        return
    names, parts, digests = [], [], bytearray()
    for placed in reversed(net.parameters):
        for what, arena in [("the weights", weights), *histories.items()]:
            names.append(f"{what} of {placed.name}")
            parts.append(placed.parameter.parts)
            values = arena[placed.offset : placed.offset + placed.count]
            digests += hashlib.blake2b(values.data, digest_size=DIGEST_BYTES).digest()
    everyone = world.gather(hashlib.sha256(digests).digest())
    if world.broadcast_object(everyone is None or len(set(everyone)) == 1):
        return
    found = world.gather(bytes(digests))
    message = world.broadcast_object(_describe(names, parts, found) if found else None)
    if message:
        raise CommError(f"iteration {iteration}: {message}")


def _describe(names: list[str], parts: list[int], digests: list[bytes]) -> str | None:
    """Returns which ranks differ in the first blob that differs; None if none does.

    names: of the blobs. parts: for each name, in how many parts ranks hold it: every parts-th rank has the same part.
    digests: of each rank, DIGEST_BYTES for each name."""
    for index, name in enumerate(names):
        for part in range(parts[index]):
            members = range(part, len(digests), parts[index])
            values = {rank: digests[rank][index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] for rank in members}
            most = Counter(values.values()).most_common(1)[0][0]
            others = [rank for rank, value in values.items() if value != most]
            if others and len(others) * 2 == len(values) == 2:
                return f"ranks {members[0]} and {members[1]} differ in {name}"
            if others:
                word = "rank" if len(others) == 1 else "ranks"
                return f"{word} {ranges_text(others)} of {len(values)} differ{'s' if word == 'rank' else ''} in {name}"
    return None
