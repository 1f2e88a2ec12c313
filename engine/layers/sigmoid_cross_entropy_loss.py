"""Cross-entropy between the sigmoid of scores and targets in [0, 1]."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import BATCH_SIZE, LossLayer
from engine.layers.registry import register


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """Bottoms: scores (N, ...), targets (same count). Top: loss ()."""

    def infer(self) -> list[Shape]:
        super().infer()
        scores, targets = self.shapes
        if math.prod(scores) != math.prod(targets):
            raise self.error(f"expected as many targets as scores, {scores}, got {targets}")
        return [()]

    def attributes(self) -> Attributes:
        scores = self.shapes[0]
        return {
            **super().attributes(),
            **self.normalization_attributes(BATCH_SIZE, scores[0], math.prod(scores[1:])),
        }

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
