"""Softmax and the negative log-likelihood of labels in one layer."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.registry import register
from engine.layers.softmax_loss_base import SoftmaxLossBase


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(SoftmaxLossBase):
    """Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner). Tops: loss (), probabilities.

    `softmax_param.axis` is the axis of the classes. With `label_smoothing` e, a label stands for the distribution that
    gives e / classes to every class and the rest to the label's own (Szegedy et al. 2016).
    """

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.softmax_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        tops = super().infer()
        if not 0 <= self.message.loss_param.label_smoothing < 1:
            raise self.error(f"expected label_smoothing in [0, 1), got {self.message.loss_param.label_smoothing:g}")
        return tops

    def attributes(self) -> Attributes:
        return {**super().attributes(), "label_smoothing": self.message.loss_param.label_smoothing}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0]) + 2 * math.prod(self.shapes[1])
