"""Computes the one-against-all hinge loss of support vector machines."""

from __future__ import annotations

from engine.layers.base import Attributes
from engine.layers.class_loss import ClassLoss
from engine.layers.registry import register


@register("HingeLoss")
class HingeLoss(ClassLoss):
    """Computes sum max(0, 1 - s x)^p / N, where s is 1 for the label's class and -1 for others (Caffe's layer). p is 1,
    or 2 with `norm: L2`. Bottoms: scores x (N, classes...), labels (N). Top: the loss ()."""

    def attributes(self) -> Attributes:
        param = self.message.hinge_loss_param
        return {**super().attributes(), "squared": param.norm == param.L2}
