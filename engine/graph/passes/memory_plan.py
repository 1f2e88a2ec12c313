"""Plans memory: activations, gradients and masks that are alive at different steps share memory in one arena."""

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
    """The steps in which a buffer of `bytes` is needed: the ascending `spans`. Its content between them is lost."""

    bytes: int
    spans: tuple[Span, ...]

    @property
    def first(self) -> int:
        return self.spans[0][0]

    @property
    def last(self) -> int:
        return self.spans[-1][1]

    def meets(self, other: Lifetime) -> bool:
        """Tells whether both buffers are needed in some step."""
        return any(a[0] <= b[1] and b[0] <= a[1] for a in self.spans for b in other.spans)


def plan(lifetimes: list[Lifetime]) -> tuple[list[int], int]:
    """Returns the offsets of the buffers in one arena, and its size, so that buffers alive at the same step do not
    overlap.

    It places the largest buffer first, each in the lowest gap that fits. On the nets of nets/ the size is within a few
    per cent of the lower bound, the most bytes that are alive at one step.
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
    """Returns offsets and size as plan() does, with memory of its own for every buffer."""
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
    """Places a program's activation buffers in an arena. First it joins buffers whose ops can write a result over an
    input that no later op needs.

    lifetimes: by buffer. enabled: whether buffers share memory. require: called with the size of the arena before it is
    allocated; raises if there is too little memory.
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
    """Joins buffers to chains, in which each is written over the one before it, in the last step that needs that.

    overwrites: (step, source, result) of each possible join. Returns the first buffer of each buffer's chain, and the
    lifetimes of the chains, in the order of their first buffers."""
    first_of = list(range(len(lifetimes)))
    end_of = list(range(len(lifetimes)))  # first buffer of a chain -> its last buffer
    chains = dict(enumerate(lifetimes))  # first buffer of a chain -> its lifetime
    for step, source, result in sorted(overwrites, key=lambda each: each[0]):
        into, last = first_of[source], first_of[result]
        if into == last or last != result or end_of[into] != source:  # another result was written there already
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
