"""Trades time for memory: results that are cheap to compute are dropped after their last reader in forward, and
recomputed for backward (Chen et al. 2016, arXiv 1604.06174, applied to the layers between convolutions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.graph.passes.memory_plan import Lifetime, join, plan

if TYPE_CHECKING:
    from engine.host._core import Program


@dataclass(frozen=True)
class Repeat:
    """A repeat of an op's forward, just before `step`, the first step of backward that reads its result.

    inputs, result: the op's buffers. bytes: of the result."""

    op: int
    step: int
    inputs: frozenset[int]
    result: int
    bytes: int


def choose(program: Program, budget: int | None) -> tuple[list[Repeat], list[Lifetime]]:
    """Chooses the ops to repeat so that activations, gradients and masks take at most `budget` bytes; None: no limit.

    Returns the repeats, and the lifetimes of all buffers with them. Raises EngineError, with the least number of bytes
    that is possible, if the budget is too small."""
    touched = program.touches()
    every = [] if budget is None else _independent(_candidates(program, touched))
    count = 0
    if budget is not None and _bytes(program, touched, []) > budget:
        least = _bytes(program, touched, every)
        if least > budget:
            raise EngineError(
                f"memory_budget: expected at least {least / 1e6:.2f} MB, which blobs and gradients take even when "
                f"{len(every)} layers are computed twice, got {budget / 1e6:.2f} MB; give more, or a smaller batch_size"
            )
        low, count = 0, len(every)  # the first `low` repeats are too few, the first `count` are enough
        while count - low > 1:
            middle = (low + count) // 2
            if _bytes(program, touched, every[:middle]) > budget:
                low = middle
            else:
                count = middle
    return every[:count], _lifetimes(touched, every[:count])


def _candidates(program: Program, touched: list[tuple[int, list[int]]]) -> list[Repeat]:
    """Returns the repeats that save memory, the largest first: of ops whose result has readers in backward, up to which
    their inputs stay alive anyway."""
    half = len(program)  # steps below this are forward
    found = []
    for op, inputs, result in program.repeatable():
        size, steps = touched[result]
        readers = [step for step in steps if step >= half]
        lost = min((touched[buffer][1][-1] for buffer in inputs), default=0)
        if readers and result not in inputs and lost >= readers[0] and op + 1 < readers[0]:
            found.append(Repeat(op, readers[0], frozenset(inputs), result, size))
    return sorted(found, key=lambda each: (-each.bytes, each.op))


def _independent(candidates: list[Repeat]) -> list[Repeat]:
    """Returns the candidates without those whose inputs are results of other repeats."""
    kept: list[Repeat] = []
    results: set[int] = set()
    inputs: set[int] = set()
    for each in candidates:
        if each.result not in inputs and not each.inputs & results:
            kept.append(each)
            results.add(each.result)
            inputs |= each.inputs
    return kept


def _lifetimes(touched: list[tuple[int, list[int]]], repeats: list[Repeat]) -> list[Lifetime]:
    """Returns the lifetimes of all buffers. touched: (bytes, steps that touch it) of each buffer."""
    at = {each.result: each.step for each in repeats}
    lifetimes = []
    for buffer, (size, steps) in enumerate(touched):
        again = at.get(buffer)
        if again is None:
            lifetimes.append(Lifetime(size, ((steps[0], steps[-1]),)))
        else:
            before = [step for step in steps if step < again]
            lifetimes.append(Lifetime(size, ((before[0], before[-1]), (again, steps[-1]))))
    return lifetimes


def _bytes(program: Program, touched: list[tuple[int, list[int]]], repeats: list[Repeat]) -> int:
    """Returns the size of the arena with these repeats."""
    return plan(join(_lifetimes(touched, repeats), program.overwrites())[1])[1]
