"""Pulls similar pairs together and pushes dissimilar ones apart, for siamese nets (Hadsell et al. 2006)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("ContrastiveLoss")
class ContrastiveLoss(PairLoss):
    """Computes the sum over the pairs of d^2 / 2N if a pair is alike, else of max(margin - d, 0)^2 / 2N, where d is the
    distance of a and b (Caffe's layer).

    Bottoms: features a and b (N, ...); whether they are alike (N), 0 if they are not. happynear's fork has the labels
    of a and of b (N each) instead, which are equal if a pair is alike. Top: the loss ().

    With `legacy_version`, and with happynear's labels, the term of a pair that is not alike is
    max(margin - d^2, 0) / 2N.
    """

    bottom_range = (3, 4)
    constant_bottoms = frozenset({2, 3})

    def infer(self) -> list[Shape]:
        tops = super().infer()
        features, *labels = self.shapes[0], *self.shapes[2:]
        for which, shape in zip(("third", "fourth"), labels):
            if math.prod(shape) != features[0]:
                raise self.error(f"expected a {which} bottom of {features[0]} values, one for each pair, got {shape}")
        return tops

    def attributes(self) -> Attributes:
        param = self.message.contrastive_loss_param
        legacy = param.legacy_version or len(self.bottoms) == 4
        return {**super().attributes(), "margin": param.margin, "legacy_version": legacy}
