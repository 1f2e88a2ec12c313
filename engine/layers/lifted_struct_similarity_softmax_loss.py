"""Pulls the samples of a class together and pushes them away from all others of a batch
(Song et al. 2016, arXiv 1511.06452)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("LiftedStructSimilaritySoftmaxLoss")
class LiftedStructSimilaritySoftmaxLoss(LossLayer):
    """The loss of lifted structured embeddings, as the code of the paper has it. Bottoms: features (N, ...), labels
    (N); top: the loss (), which is the sum of max(J, 0)^2 over all pairs of samples of one class, divided by twice
    their number.

    D is the distance of two samples' features. A pair (i, j) has J = D_ij + log(sum over the samples k of other classes
    of exp(margin - D_ik) + exp(margin - D_jk)). The loss is 0 if no class has two samples, or if all samples are of one
    class.
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
