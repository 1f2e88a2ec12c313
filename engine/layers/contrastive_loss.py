"""Pulls similar pairs together and pushes dissimilar ones apart, for siamese nets (Hadsell et al. 2006)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("ContrastiveLoss")
class ContrastiveLoss(PairLoss):
    """Bottoms: features a and b (N, ...), whether they are alike (N). Top: sum over the pairs of d^2 or, where they are
    not, of max(margin - d, 0)^2, by 2N; d is their distance. `legacy_version`: max(margin - d^2, 0)."""

    bottom_range = (3, 3)
    constant_bottoms = frozenset({2})

    def infer(self) -> list[Shape]:
        tops = super().infer()
        features, alike = self.shapes[0], self.shapes[2]
        if math.prod(alike) != features[0]:
            raise self.error(f"expected a third bottom of {features[0]} values, one for each pair, got {alike}")
        return tops

    def attributes(self) -> Attributes:
        param = self.message.contrastive_loss_param
        return {**super().attributes(), "margin": param.margin, "legacy_version": param.legacy_version}
