"""One memory plan: activations, gradients and masks that are alive at different steps share memory in an arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.host._core import Program

ALIGNMENT = 64  # bytes: a cache line, and a vector register of AVX-512

Span = tuple[int, int]  # first and last step


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes`, needed in each of `spans`, which are in order; what it holds between them is lost."""

    bytes: int
    spans: tuple[Span, ...]

    @property
    def first(self) -> int:
        return self.spans[0][0]

    @property
    def last(self) -> int:
        return self.spans[-1][1]

    def meets(self, other: Lifetime) -> bool:
        return any(a[0] <= b[1] and b[0] <= a[1] for a in self.spans for b in other.spans)


def plan(lifetimes: list[Lifetime]) -> tuple[list[int], int]:
    """Offsets of the buffers in one arena, and its size, such that buffers alive at the same step do not overlap.

    Greedy by size, each in the lowest gap that fits: within a few per cent of the lower bound (the most bytes alive
    at one step) on the nets of nets/.
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].first))
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for i in order:
        me = lifetimes[i]
        size = _aligned(me.bytes)
        alive = sorted((offsets[j], _aligned(lifetimes[j].bytes)) for j in placed if lifetimes[j].meets(me))
        at = 0
        for start, length in alive:
            if at + size <= start:
                break
            at = max(at, start + length)
        offsets[i] = at
        placed.append(i)
        total = max(total, at + size)
    return offsets, total


def apart(lifetimes: list[Lifetime]) -> tuple[list[int], int]:
    """The plan switched off: every buffer has memory of its own."""
    offsets, total = [], 0
    for life in lifetimes:
        offsets.append(total)
        total += _aligned(life.bytes)
    return offsets, total


def place(
    program: Program,
    lifetimes: list[Lifetime],
    enabled: bool = True,
    require: Callable[[int], object] = lambda count: None,
) -> None:
    """Places a program's activation memory, whose lifetimes (by buffer) are given.

    Results are first written over inputs that nobody needs any more (a join of two buffers), where the ops allow it.
    require: called with the bytes that it takes before it takes them, to raise where there are fewer.
    """
    if not enabled:
        offsets, total = apart(lifetimes)
        require(total)
        program.place(offsets, total)
        return
    group, joined = join(lifetimes, program.overwrites())
    for buffer, into in enumerate(group):
        if buffer != into:
            program.join(buffer, into)
    offsets, total = plan(joined)
    require(total)
    place_of = dict(zip(sorted(set(group)), offsets, strict=True))
    program.place([place_of[into] for into in group], total)


def join(lifetimes: list[Lifetime], overwrites: list[tuple[int, int, int]]) -> tuple[list[int], list[Lifetime]]:
    """Chains of buffers, each written over the one before it as soon as that is dead. overwrites: (step, source,
    result) that are possible. Returns the first buffer of each one's chain, and the lifetimes of the chains in the
    order of their first buffers."""
    first_of = list(range(len(lifetimes)))
    end_of = list(range(len(lifetimes)))  # the last buffer of a chain, by its first
    chains = dict(enumerate(lifetimes))
    for step, source, result in sorted(overwrites, key=lambda each: each[0]):
        into, last = first_of[source], first_of[result]
        if into == last or last != result or end_of[into] != source:  # another result of this step lies there
            continue
        before, after = chains[into], chains[last]
        if before.last == step == after.first and after.bytes <= before.bytes:
            (begin, _), (_, end) = before.spans[-1], after.spans[0]
            chains[into] = Lifetime(before.bytes, (*before.spans[:-1], (begin, end), *after.spans[1:]))
            del chains[last]
            end_of[into] = end_of[last]
            first_of = [into if each == last else each for each in first_of]
    return first_of, [chains[buffer] for buffer in sorted(chains)]


def _aligned(count: int) -> int:
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
