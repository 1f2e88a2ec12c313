"""Pulls the samples of a class together and pushes others apart, in all pairs of a batch (happynear's fork)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("BatchContrastiveLoss")
class BatchContrastiveLoss(LossLayer):
    """Computes the mean over the pairs of a batch of positive_weight max(d - positive_margin, 0) for pairs of one
    class, and of negative_weight max(negative_margin - d, 0) for others (happynear's layer). With `max_only` the loss
    is the largest term of the one kind plus the largest of the other.

    Bottoms: distances d (N, N), of which those above the diagonal count, labels (N). Tops: the loss (), and, if asked
    for, the mean distances (2) of the pairs of one class and of the others.

    As in the fork, derivatives are divided by N, or with `max_only` by 2, and not by the number of pairs.
    """

    top_range = (0, 2)

    def infer(self) -> list[Shape]:
        super().infer()
        distances, labels = self.shapes
        if math.prod(distances) != distances[0] ** 2 or math.prod(labels) != distances[0]:
            raise self.error(f"expected distances (N, N) and N labels, got {distances} and {labels}")
        return [(), (2,)][: max(1, len(self.message.top))]

    def attributes(self) -> Attributes:
        param = self.message.batch_contrastive_loss_param
        names = ("positive_margin", "negative_margin", "positive_weight", "negative_weight", "max_only")
        return {**super().attributes(), **{name: getattr(param, name) for name in names}}
