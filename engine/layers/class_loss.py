"""The base of losses that take one label for each sample."""

from __future__ import annotations

import math

from engine.layers.base import Shape
from engine.layers.loss import LossLayer


class ClassLoss(LossLayer):
    """Bottoms: a value for each class (N, classes...), labels (N). Top: the loss ()."""

    def infer(self) -> list[Shape]:
        super().infer()
        values, labels = self.shapes
        if math.prod(labels) != values[0]:
            raise self.error(f"expected {values[0]} labels, one for each sample of {values}, got {labels}")
        return [()]

    def flops(self) -> int:
        return 2 * math.prod(self.shapes[0])
