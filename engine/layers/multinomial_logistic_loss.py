"""Computes the negative log-likelihood of labels from probabilities."""

from __future__ import annotations

from engine.layers.class_loss import ClassLoss
from engine.layers.registry import register


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(ClassLoss):
    """Computes -sum log p / N, where p is the probability of a sample's label (Caffe's layer). Bottoms: probabilities
    (N, classes...), labels (N); top: the loss ()."""

    def flops(self) -> int:
        return 2 * self.shapes[0][0]
