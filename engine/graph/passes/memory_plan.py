"""One memory plan: activations, gradients and masks share an arena by the steps at which they are alive."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and a vector register of AVX-512


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes`, touched first at step `first` and last at step `last`."""

    bytes: int
    first: int
    last: int


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
        alive = sorted(
            (offsets[j], _aligned(lifetimes[j].bytes))
            for j in placed
            if lifetimes[j].first <= me.last and me.first <= lifetimes[j].last
        )
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


def lower_bound(lifetimes: list[Lifetime]) -> int:
    """Bytes alive at the fullest step: no plan can do with less."""
    steps = {life.first for life in lifetimes}
    return max((sum(_aligned(o.bytes) for o in lifetimes if o.first <= s <= o.last) for s in steps), default=0)


def place(program, enabled: bool = True) -> int:
    """Plans and places a program's activation memory. Returns the arena's bytes.

    Results are first written over inputs that nobody needs any more (a join of two buffers), where the ops allow it.
    """
    while enabled and _join_one_round(program):
        pass
    lifetimes = [Lifetime(*each) for each in program.lifetimes()]
    offsets, total = (plan if enabled else apart)(lifetimes)
    program.place(offsets, total)
    return total


def _join_one_round(program) -> bool:
    """Joins every pair that can be joined now; each buffer at most once, since its lifetime changes. True if any
    was."""
    lifetimes = [Lifetime(*each) for each in program.lifetimes()]
    touched: set[int] = set()
    for step, source, result in program.overwrites():
        if source == result or touched & {source, result}:
            continue
        dies_here = lifetimes[source].last == step
        born_here = lifetimes[result].first == step
        if dies_here and born_here and lifetimes[result].bytes <= lifetimes[source].bytes:
            program.join(result, source)
            touched |= {source, result}
    return bool(touched)


def _aligned(count: int) -> int:
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
