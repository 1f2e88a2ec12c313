"""Draws samples of a class together and away from all others of a batch (Song et al. 2016, arXiv 1511.06452)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("LiftedStructSimilaritySoftmaxLoss")
class LiftedStructSimilaritySoftmaxLoss(LossLayer):
    """Bottoms: features (N, ...), labels (N). With D the distance of two samples' features, a pair (i, j) of one class
    has J = log(sum over samples k of other classes of exp(margin - D_ik) + exp(margin - D_jk)) + D_ij. Top: the sum of
    max(J, 0)^2 over the pairs, by 2 times their number; 0 where no class has two samples, or all are of one.
    """

    def infer(self) -> list[Shape]:
        super().infer()
        features, labels = self.shapes
        if math.prod(labels) != features[0]:
            raise self.error(f"expected features (N, ...) and N labels, got {features} and {labels}")
        self.refuse_loss_param()
        return [()]

    def attributes(self) -> Attributes:
        return {**super().attributes(), "margin": self.message.lifted_struct_sim_softmax_loss_param.margin}

    def flops(self) -> int:
        return 3 * self.shapes[0][0] * math.prod(self.shapes[0])
