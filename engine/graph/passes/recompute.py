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
    """Op `op` runs its forward again just before step `step`, the first of the backward pass that reads its result."""

    op: int
    step: int
    inputs: frozenset[int]  # buffers
    result: int
    bytes: int


def choose(program: Program, budget: int | None) -> tuple[list[Repeat], list[Lifetime]]:
    """What to compute again so that activations, gradients and masks take at most `budget` bytes, and the lifetimes
    of all buffers then. None: nothing is repeated. Raises EngineError with the least bytes that it takes."""
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
        low, count = 0, len(every)  # too few, enough
        while count - low > 1:
            middle = (low + count) // 2
            if _bytes(program, touched, every[:middle]) > budget:
                low = middle
            else:
                count = middle
    return every[:count], _lifetimes(touched, every[:count])


def _candidates(program: Program, touched: list[tuple[int, list[int]]]) -> list[Repeat]:
    """The ops that can save memory: their result has readers in backward, until which their inputs stay alive anyway.
    The largest first."""
    half = len(program)  # steps below are forward
    found = []
    for op, inputs, result in program.repeatable():
        size, steps = touched[result]
        readers = [step for step in steps if step >= half]
        lost = min((touched[buffer][1][-1] for buffer in inputs), default=0)
        if readers and result not in inputs and lost >= readers[0] and op + 1 < readers[0]:
            found.append(Repeat(op, readers[0], frozenset(inputs), result, size))
    return sorted(found, key=lambda each: (-each.bytes, each.op))


def _independent(candidates: list[Repeat]) -> list[Repeat]:
    """Those whose inputs are not recomputed themselves."""
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
    return plan(join(_lifetimes(touched, repeats), program.overwrites())[1])[1]
