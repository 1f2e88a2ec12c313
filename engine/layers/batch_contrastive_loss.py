"""Pulls the samples of a class together and pushes others apart, all pairs of a batch, from happynear's fork."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("BatchContrastiveLoss")
class BatchContrastiveLoss(LossLayer):
    """Bottoms: distances (N, N), of which those above the diagonal count, labels (N). Tops: the mean over the pairs of
    positive_weight max(d - positive_margin, 0) for those of one class, negative_weight max(negative_margin - d, 0) for
    others, or, `max_only`, the largest term of each kind; and, if given, the mean distances (2) of both kinds.

    As in the fork, derivatives are divided by N, or with `max_only` by 2, in place of the number of pairs.
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
