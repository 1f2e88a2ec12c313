"""Computes the loss of a discriminator's scores, which tell real samples from those that a generator has made."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("AdversarialLoss")
class AdversarialLoss(LossLayer):
    """Computes the mean loss of all scores s (a layer of this engine's own). r is 1 if the samples are real, and 0 if a
    generator has made them.

    Bottoms: scores (N, ...), and r, one value. Without the second bottom r is 1, which is what a generator wants to be
    told. Top: the loss ().

    The field `loss` names the loss of a score:
    - NON_SATURATING: log(1 + exp(s)) - r s, the cross-entropy of sigmoid(s) (Goodfellow et al. 2014, whose generator
      maximises log D(G(z))).
    - LEAST_SQUARES: (s - r)^2 / 2 (Mao et al. 2017).
    - WASSERSTEIN: -s if r is 1, s if it is 0 (Arjovsky et al. 2017).
    """

    bottom_range = (1, 2)

    def infer(self) -> list[Shape]:
        if not self.shapes[0]:
            raise self.error("expected scores of one axis or more, got a single value")
        if len(self.shapes) > 1 and math.prod(self.shapes[1]) != 1:
            raise self.error(f"expected one value in the second bottom, got {self.shapes[1]}")
        return [()]

    def attributes(self) -> Attributes:
        kind = self.message.adversarial_loss_param.loss
        return {**super().attributes(), "kind": kind, "normalizer": float(math.prod(self.shapes[0]))}

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
