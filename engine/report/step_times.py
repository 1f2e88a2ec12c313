"""Tells where the time of a step goes: data, compute, communication that is not hidden, and waiting for slower
ranks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.comm.world import World


MOST = 10_000  # steps that are kept, the last ones: a run may never ask for a line


class StepTimes:
    """Keeps the times of one rank's steps, except the first, in which kernels are generated; line() joins the
    ranks'."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, int]] = deque(maxlen=MOST)
        self._warm = False

    def add(self, whole: int, data: int, communication: int) -> None:
        """Adds a step. All are nanoseconds: the whole step, its wait for data, its wait for reduced gradients."""
        if self._warm:
            self._steps.append((whole, data, communication))
        self._warm = True

    def line(self, world: World | None) -> str:
        """Collective, after the same steps on every rank. Returns a line about the mean step since the last call on
        rank 0; "" on other ranks, and if there was no step. world: None for this rank alone, which is not
        collective."""
        steps = np.array(self._steps, np.int64).reshape(-1, 3)
        self._steps.clear()
        ranks = world.gather(steps) if world else [steps]
        return describe(np.array(ranks) / 1e6) if ranks and len(steps) else ""


def describe(steps: np.ndarray) -> str:
    """Returns a line about the mean step.

    Compute and data are means over the ranks. In each step a rank is busy while it computes or waits for data, and a
    step takes at least as long as its busiest rank is busy: the time beyond that is exposed communication. The time
    by which the busiest rank is above the mean of the ranks is skew.

    Args:
        steps: milliseconds (ranks, steps, [whole, waiting for data, waiting for reduced gradients]).
    """
    ranks = len(steps)
    whole, data = steps[..., 0].mean(), steps[..., 1].mean()
    busy = steps[..., 0] - steps[..., 2]
    shares = {"compute": busy.mean() - data, "data": data}
    if ranks > 1:
        longest = busy.max(axis=0).mean()
        shares["exposed communication"] = max(0.0, whole - longest)
        shares["skew"] = min(longest, whole) - busy.mean()
    last = busy.mean(axis=1)
    slowest = f" (rank {last.argmax()} is {last.max() - last.min():.2f} ms slower than rank {last.argmin()})"
    text = ", ".join(f"{name} {max(0.0, value):.2f}" for name, value in shares.items())
    return f"{whole:.2f} ms per iteration: {text}{slowest if last.argmax() != last.argmin() else ''}"
