"""Computes SmoothL1Loss and also the loss of each region, for mining hard examples (R-FCN)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import VALID
from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(PairLoss):
    """Computes the sum of f(w (a - b)), where f(d) = d^2 / 2 if |d| is below 1, else |d| - 1/2 (R-FCN's layer).
    Bottoms: predictions a (N, C, H, W), targets b and, if given, weights w, all of one count; tops: the loss (), and
    the sum over the channels, (N, 1, H, W). H and W may be left out if they are 1.

    `normalization` FULL and VALID divide the loss by N H W, BATCH_SIZE divides it by N.
    """

    op_type = "SmoothL1Loss"
    bottom_range = (2, 3)
    top_range = (0, 2)
    constant_bottoms = frozenset({2})

    @property
    def is_loss(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        super().infer()
        shape = self.shapes[0]
        if len(shape) not in (2, 4):
            raise self.error(f"expected predictions (N, C, H, W) or (N, C), got {shape}")
        if len(self.shapes) == 3 and math.prod(self.shapes[2]) != math.prod(shape):
            raise self.error(f"expected weights of the same count as the predictions, {shape}, got {self.shapes[2]}")
        return [(), (shape[0], 1, *(shape[2:] or (1, 1)))][: max(1, len(self.message.top))]

    def attributes(self) -> Attributes:
        shape = self.shapes[0]
        positions = math.prod(shape[2:])
        given = self.normalizer(VALID, shape[0], positions)
        return {**super().attributes(), "sigma": 1.0, "normalizer": max(1.0, given or float(shape[0] * positions))}
