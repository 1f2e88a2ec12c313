"""Computes SoftmaxWithLoss and also the loss of each label, for mining hard examples (R-FCN)."""

from __future__ import annotations

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.softmax_with_loss import SoftmaxWithLoss


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """Computes what SoftmaxWithLoss does, for labels (R-FCN's layer). Bottoms: scores (outer..., classes, inner...),
    one label for each (outer, inner); tops: the loss (), the probabilities, and the loss of each label, which is 0 if
    the label is ignored. The last has the labels' shape, or (N, 1, 1, 1) if they have one axis, like R-FCN's labels."""

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
