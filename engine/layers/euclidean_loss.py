"""Half the mean squared distance of two blobs."""

from __future__ import annotations

import math

from engine.layers.base import Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("EuclideanLoss")
class EuclideanLoss(LossLayer):
    """Bottoms: two blobs (N, ...) of the same count; both may be predictions. Top: sum (a - b)^2 / 2N."""

    constant_bottoms = frozenset()

    def infer(self) -> list[Shape]:
        super().infer()
        first, second = self.shapes
        if math.prod(first) != math.prod(second):
            raise self.error(f"expected bottoms of the same count, got {first} and {second}")
        return [()]

    def flops(self) -> int:
        return 3 * math.prod(self.shapes[0])
