"""Computes the cross-entropy between a softmax and target distributions, as several forks do."""

from __future__ import annotations

from engine.layers.base import Shape
from engine.layers.labels import are_distributions
from engine.layers.loss import BATCH_SIZE
from engine.layers.registry import register
from engine.layers.softmax_with_loss import SoftmaxWithLoss


@register("SoftmaxCrossEntropyLoss")
class SoftmaxCrossEntropyLoss(SoftmaxWithLoss):
    """Computes the sum of -t log p, divided by outer, where p are the probabilities and t the targets, as most forks
    do. Bottoms: scores (outer..., classes, inner...), and targets of the same count, a distribution over the classes
    for each (outer, inner); tops: the loss (), and the probabilities."""

    default_normalization = BATCH_SIZE

    def infer(self) -> list[Shape]:
        tops = super().infer()
        if not are_distributions(self, self.axis):
            scores, targets = self.shapes
            raise self.error(f"expected a target for each score of {scores}, got {targets}; labels: SoftmaxWithLoss")
        return tops
