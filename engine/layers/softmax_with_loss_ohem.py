"""SoftmaxWithLoss that also outputs the loss of each label, for mining hard examples (R-FCN)."""

from __future__ import annotations

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.softmax_with_loss import SoftmaxWithLoss


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner). Tops: loss (), probabilities,
    the loss of each label, in the labels' shape, of one axis as (N, 1, 1, 1), like that of R-FCN's labels, and 0 where
    a label is ignored."""

    top_range = (0, 3)
    takes_distributions = False

    @property
    def is_loss(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        super().infer()
        scores, labels = self.shapes
        losses = (*labels, 1, 1, 1) if len(labels) == 1 else labels
        return [(), scores, losses][: max(1, len(self.message.top))]
