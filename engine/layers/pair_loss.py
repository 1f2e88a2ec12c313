"""The base of losses that compare two blobs element by element, both of which may be predictions."""

from __future__ import annotations

import math

from engine.layers.base import Shape
from engine.layers.loss import LossLayer


class PairLoss(LossLayer):
    """Bottoms: two blobs (N, ...) of one count, with gradients for both; top: the loss ()."""

    constant_bottoms = frozenset()

    def infer(self) -> list[Shape]:
        first, second = self.shapes[:2]
        if not first or first[:1] != second[:1]:
            raise self.error(f"expected bottoms with the same first axis, got {first} and {second}")
        if math.prod(first) != math.prod(second):
            raise self.error(f"expected bottoms of the same count, got {first} and {second}")
        return [()]

    def flops(self) -> int:
        return 3 * math.prod(self.shapes[0])
