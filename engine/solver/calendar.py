"""Converts between the iterations, samples and epochs of a run, and tells what is due after an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Calendar:
    """How many samples the iterations of a run have.

    Attributes:
        batch: samples in an iteration, over all ranks, before it grows.
        size: rows of the data set, which are one epoch; 0 if it is not known.
        steps: ascending iterations; at each the batch grows by `factor`.
        factor: see steps.
        begun: iterations done before `batch` held, in batches of other sizes.
        before: samples that those iterations had together.
        rows: rows of the data set for each sample: more than 1 in nets without a data layer, where each batch of a rank
            counts as one sample.
    """

    batch: int
    size: int = 0
    steps: tuple[int, ...] = ()
    factor: int = 1
    begun: int = 0
    before: int = 0
    rows: int = 1

    def samples(self, iterations: int) -> int:
        """Returns how many samples the first `iterations` iterations have, over all ranks."""
        total, begin, batch = self.before, self.begun, self.batch
        for step in (*self.steps, iterations):
            end = min(max(step, begin), iterations)
            total, begin, batch = total + (end - begin) * batch, end, batch * self.factor
        return total

    def epochs(self, iterations: int) -> float:
        """Returns how many epochs the first `iterations` iterations are. The size must be known."""
        return self.samples(iterations) * self.rows / self.size

    def iterations(self, epochs: float) -> int:
        """Returns how many whole iterations fit into so many epochs: 0 for 0 epochs, else at least one. The size must
        be known."""
        samples, begin, batch = exact(epochs) * self.size / self.rows, 0, self.batch
        if samples <= 0:
            return 0
        for step in self.steps:
            if samples < (step - begin) * batch:
                break
            samples, begin, batch = samples - (step - begin) * batch, step, batch * self.factor
        return max(1, begin + int(samples // batch))

    def is_due(self, iteration: int, interval: int, epochs: float = 0.0) -> bool:
        """Tells whether something is due after `iteration` iterations.

        interval, epochs: it is due every `interval` iterations or, where that is 0, every `epochs` epochs; never if
        both are 0. In epochs, what is due after N epochs is due after iterations(N): rounding does not add up."""
        if interval > 0 or epochs <= 0:
            return interval > 0 and iteration % interval == 0
        return iteration == 0 or self._passed(iteration, epochs) > self._passed(iteration - 1, epochs)

    def next_due(self, iteration: int, until: int, interval: int, epochs: float = 0.0) -> int:
        """Returns the first iteration after this one for which is_due() holds, `until` at the latest."""
        if interval > 0:
            return min(until, (iteration // interval + 1) * interval)
        later = range(iteration + 1, until) if epochs > 0 else ()
        return next((each for each in later if self.is_due(each, 0, epochs)), until)

    def _passed(self, iteration: int, epochs: float) -> int:
        """Returns how many multiples of `epochs` are due by an iteration: those that the next iteration would pass."""
        return -(-self.samples(iteration + 1) * self.rows // (exact(epochs) * self.size)) - 1 if iteration > 0 else 0


def exact(number: float) -> Fraction:
    """Returns the decimal fraction that a text's float32 stands for: 0.7, not 0.699999988."""
    return Fraction(str(np.float32(number)))
