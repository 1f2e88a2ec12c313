"""Times the kernels that can compute an op, by running the op alone in the shapes, layouts and threads of its net.

A kernel's time includes what it converts and reorders, and what the op's neighbours would pay for another layout of its
result. For each layout of the result, the backward passes are timed beside the fastest forward kernel with that layout.
The best combination is then run against the kernels of the rules of thumb, all passes together, and must win by a
margin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.graph.passes import memory_plan
from engine.graph.passes.recompute import choose
from engine.layers.kernels import DATA, FORWARD, WEIGHTS, Asked, Choice

if TYPE_CHECKING:
    from engine.host._core import Program, Tensor

MARGIN = 0.97  # kernels must take less than this fraction of the rules' time: what is closer may be noise
HOPELESS = 2.0  # a kernel that takes so many times the best time so far is not run any more
RUNS, SECONDS = 20, 0.1  # a kernel is run so often at most, and for about so long
LONG = 0.2  # seconds: a first run that takes longer may count, although it meets cold memory


@dataclass
class Measured:
    """The measurement of an op. kernels: the chosen ones by pass; empty if there is no choice. ms: by pass, the
    milliseconds of each kernel; those of backward beside the chosen forward kernel."""

    kernels: dict[str, str] = field(default_factory=dict)
    ms: dict[str, dict[str, float]] = field(default_factory=dict)


class Trial:
    """One op as a program of its own, with the kernels of `choice`. All its blobs are 0.

    dx, dw: whether backward computes the gradients of the bottom, and of the parameters. Raises RuntimeError or
    ValueError if the kernels do not suit the op.
    """

    def __init__(self, asked: Asked, choice: Choice, dx: bool, dw: bool):
        from engine.host import _core

        self.program: Program = _core.Program(asked.trains)
        inputs = [self.program.given(x, dx and x.diff is not None) for x in asked.inputs]
        params = [self._parameter(asked, tensor, dw) for tensor in asked.params]
        attributes = {name: value for name, value in asked.attributes.items() if name not in asked.passes}
        attributes |= {**choice, "exact": True}
        shape = list(asked.shape)
        (self.top,) = self.program.op(asked.type, "measured", inputs, params, attributes, [shape], [asked.trains])
        for tensor in [*inputs, self.top]:
            self.program.own(tensor)
        for tensor in params:
            self._place(tensor)
        memory_plan.place(self.program, choose(self.program, None)[1])
        self._given = asked.top

    def _parameter(self, asked: Asked, like: Tensor, learns: bool) -> Tensor:
        tensor = self.program.parameter("measured", list(like.shape), learns and like.diff is not None)
        if tensor.diff is not None and like.diff is not None:
            tensor.diff.accumulate = like.diff.accumulate
        if asked.plain:
            tensor.decide_plain()
        return tensor

    def _place(self, tensor: Tensor) -> None:
        from engine.host import _core

        for each in (tensor, tensor.diff):
            if each is not None:
                each.decide_plain()
                each.place(_core.Arena(each.nbytes), 0)

    def forward(self) -> float:
        """Runs the op's forward. Returns the seconds that it took."""
        self.program.forward()
        begin, end = self.program.spans()[0]
        return float(end - begin) / 1e9

    def backward(self) -> float:
        """Runs the op's backward. Returns the seconds that it took."""
        self.program.backward()
        begin, end = self.program.spans()[1]
        return float(end - begin) / 1e9

    @property
    def same_layout(self) -> bool:
        """Whether the result lies in memory as it does in the net."""
        return (self.top.layout, self.top.dtype) == (self._given.layout, self._given.dtype)

    def border(self, trains: bool) -> float:
        """Returns the seconds that the neighbours would take to bring the result into the layout that it has in the
        net and, if `trains`, its gradient back."""
        from engine.host import _core

        if self.same_layout:
            return 0.0
        program = _core.Program(False)
        other = program.given(self._given, False)
        program.own(other)
        there = best_of(lambda: _seconds(lambda: self.top.convert(other)))
        return there + (best_of(lambda: _seconds(lambda: other.convert(self.top))) if trains else 0.0)


def measure(asked: Asked) -> Measured:
    """Returns the kernels that take the least time for an op of a net, and the times of all."""
    passes = asked.passes
    if all(len(kernels) < 2 for kernels in passes.values()):
        return Measured()
    found, ms = _best(asked, passes)
    if found is None:
        return Measured()
    rules = _by_rule(asked, ms)
    if found != rules:
        by_rule, seconds = _whole(asked, rules), _whole(asked, found)
        if seconds is None or (by_rule is not None and seconds > MARGIN * by_rule):
            found = rules
    return Measured(found, ms)


def _by_rule(asked: Asked, ms: dict[str, dict[str, float]]) -> dict[str, str]:
    """Returns the kernels that the rules of thumb give an op, as far as they could be run.

    ms: the measured kernels, by pass."""
    rules = {name: asked.choice.get(name, "direct") for name in ms}
    if "amx" in ms.get(WEIGHTS, {}) and WEIGHTS not in asked.choice:
        rules[WEIGHTS] = "amx"
    return {name: kernel if kernel in ms[name] else "direct" for name, kernel in rules.items()}


def _best(asked: Asked, passes: dict[str, list[str]]) -> tuple[dict[str, str] | None, dict[str, dict[str, float]]]:
    """Finds, among the layouts that forward kernels give the result, the one whose fastest kernels take least time over
    all passes. Returns these kernels by pass, None if none could be run, and the milliseconds of all that were."""
    forward: dict[str, float] = {}
    layouts: dict[str, list[tuple[float, str]]] = {}  # (seconds, kernel) by the layout of the result
    for kernel in passes[FORWARD]:
        trial = _trial(asked, {FORWARD: kernel}, dx=False, dw=True)
        if trial is None:
            continue
        seconds = best_of(trial.forward, min(forward.values(), default=None)) + trial.border(asked.trains)
        forward[kernel] = seconds
        layouts.setdefault(trial.top.layout, []).append((seconds, kernel))
    best: tuple[float, dict[str, str], dict[str, dict[str, float]]] | None = None
    for seconds, kernel in sorted(min(found) for found in layouts.values()):
        if seconds > HOPELESS * min(forward.values()):
            break
        chosen, ms = {FORWARD: kernel}, {FORWARD: forward}
        for name in (DATA, WEIGHTS):
            if name not in passes:
                continue
            ms[name] = {}
            for each in passes[name]:
                trial = _trial(asked, {FORWARD: kernel, name: each}, dx=name == DATA, dw=name == WEIGHTS)
                if trial is not None:
                    ms[name][each] = best_of(trial.backward, min(ms[name].values(), default=None))
            if ms[name]:
                chosen[name] = min(ms[name], key=lambda each: ms[name][each])
                seconds += ms[name][chosen[name]]
        if best is None or seconds < best[0]:
            best = (seconds, chosen, ms)
    if best is None:
        return None, {}
    ms = {name: {each: round(1e3 * value, 4) for each, value in times.items()} for name, times in best[2].items()}
    return best[1], ms


def _trial(asked: Asked, choice: Choice, dx: bool, dw: bool) -> Trial | None:
    """Returns the trial; None if the kernels do not suit the op."""
    try:
        return Trial(asked, choice, dx, dw)
    except (RuntimeError, ValueError):
        return None


def _whole(asked: Asked, choice: Choice) -> float | None:
    """Returns the seconds of all passes of the op together; None if the kernels do not suit each other."""
    trial = _trial(asked, choice, dx=True, dw=True)
    if trial is None:
        return None
    backward = trial.program.needs_backward(0) and asked.trains
    seconds = best_of(lambda: trial.forward() + (trial.backward() if backward else 0.0))
    return seconds + trial.border(asked.trains)


def best_of(run: Callable[[], float], best: float | None = None) -> float:
    """Returns the least seconds of several runs; of fewer if they are clearly slower than `best`.

    The first run meets cold memory and does not count, unless it is so slow that it is the only one."""
    first = run()
    if best is not None and first > max(LONG, HOPELESS**2 * best):
        return first
    times = [run()]
    while len(times) < RUNS and sum(times) < SECONDS and (best is None or min(times) < HOPELESS * best):
        times.append(run())
    return min(times)


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
