"""Iterations, samples and epochs of a run: which number of one is how much of another."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Calendar:
    """batch: samples in an iteration of all ranks, before it grows. size: samples in an epoch, 0 if nobody knows.
    steps: iterations from which on an iteration has `factor` times as many samples as before. begun, before: so many
    iterations with so many samples were in other batches. rows: of the data set, what a sample stands for: more than 1
    in nets without a data layer, where each batch of a rank is counted as one."""

    batch: int
    size: int = 0
    steps: tuple[int, ...] = ()
    factor: int = 1
    begun: int = 0
    before: int = 0
    rows: int = 1

    def samples(self, iterations: int) -> int:
        """Those of the first so many iterations."""
        total, begin, batch = self.before, self.begun, self.batch
        for step in (*self.steps, iterations):
            end = min(max(step, begin), iterations)
            total, begin, batch = total + (end - begin) * batch, end, batch * self.factor
        return total

    def epochs(self, iterations: int) -> float:
        """How often the data set has been seen after so many iterations. The size must be known."""
        return self.samples(iterations) * self.rows / self.size

    def iterations(self, epochs: float) -> int:
        """The whole iterations that fit into so many epochs, at least one, if there are any. The size must be known."""
        samples, begin, batch = exact(epochs) * self.size / self.rows, 0, self.batch
        if samples <= 0:
            return 0
        for step in self.steps:
            if samples < (step - begin) * batch:
                break
            samples, begin, batch = samples - (step - begin) * batch, step, batch * self.factor
        return max(1, begin + int(samples // batch))

    def is_due(self, iteration: int, interval: int, epochs: float = 0.0) -> bool:
        """Whether what falls due every so many iterations, or else epochs, does after `iteration` of them. 0 and 0:
        never. In epochs, what is due after N epochs is so after iterations(N): these do not drift apart."""
        if interval > 0 or epochs <= 0:
            return interval > 0 and iteration % interval == 0
        return iteration == 0 or self._passed(iteration, epochs) > self._passed(iteration - 1, epochs)

    def next_due(self, iteration: int, until: int, interval: int, epochs: float = 0.0) -> int:
        """The first iteration after this one for which is_due(), or `until`, if that comes before."""
        if interval > 0:
            return min(until, (iteration // interval + 1) * interval)
        later = range(iteration + 1, until) if epochs > 0 else ()
        return next((each for each in later if self.is_due(each, 0, epochs)), until)

    def _passed(self, iteration: int, epochs: float) -> int:
        """How many multiples of `epochs` fall due up to an iteration: those before the next iteration's end."""
        return -(-self.samples(iteration + 1) * self.rows // (exact(epochs) * self.size)) - 1 if iteration > 0 else 0


def exact(number: float) -> Fraction:
    """The decimal fraction that a float32 of a text stands for: 0.7, not 0.699999988."""
    return Fraction(str(np.float32(number)))
