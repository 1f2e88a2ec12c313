"""The negative log-likelihood of labels, from probabilities."""

from __future__ import annotations

from engine.layers.class_loss import ClassLoss
from engine.layers.registry import register


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(ClassLoss):
    """Bottoms: probabilities (N, classes...), labels (N). Top: -sum log(p of the label's class) / N."""

    def flops(self) -> int:
        return 2 * self.shapes[0][0]
