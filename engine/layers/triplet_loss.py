"""Pulls an anchor towards a sample that is like it, and away from one that is not
(Schroff et al. 2015, arXiv 1503.03832)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("TripletLoss")
class TripletLoss(LossLayer):
    """Computes the sum of max(margin + |a - p|^2 - |a - n|^2, 0), divided by 2N (happynear's layer). Bottoms: anchors
    a, samples p that are like them, and samples n that are not, all (N, ...); top: the loss ()."""

    bottom_range = (3, 3)
    constant_bottoms = frozenset()

    def infer(self) -> list[Shape]:
        if not self.shapes[0] or len(set(self.shapes)) != 1:
            raise self.error(f"expected three bottoms of one shape (N, ...), got {self.shapes}")
        return [()]

    def attributes(self) -> Attributes:
        return {**super().attributes(), "margin": self.message.triplet_loss_param.margin}

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
