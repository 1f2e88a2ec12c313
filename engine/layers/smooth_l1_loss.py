"""Computes Fast R-CNN's loss of box coordinates: quadratic for small differences, absolute for large ones."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("SmoothL1Loss")
class SmoothL1Loss(PairLoss):
    """Computes sum w_out f(w_in (a - b)) / N, where f(d) = sigma^2 d^2 / 2 if |d| is below 1 / sigma^2, else
    |d| - 1 / (2 sigma^2) (Fast R-CNN's layer). Bottoms: predictions a (N, ...), targets b and, if given, the weights
    w_in and w_out, all of one count; top: the loss ()."""

    bottom_range = (2, 4)  # 3: Fast R-CNN before it had outside weights
    constant_bottoms = frozenset({2, 3})

    def infer(self) -> list[Shape]:
        tops = super().infer()
        for shape in self.shapes[2:]:
            if math.prod(shape) != math.prod(self.shapes[0]):
                raise self.error(
                    f"expected weights of the same count as the predictions, {self.shapes[0]}, got {shape}"
                )
        if self.message.smooth_l1_loss_param.sigma <= 0:
            raise self.error(f"expected sigma above 0, got {self.message.smooth_l1_loss_param.sigma:g}")
        return tops

    def attributes(self) -> Attributes:
        return {**super().attributes(), "sigma": self.message.smooth_l1_loss_param.sigma}

    def flops(self) -> int:
        return (4 + len(self.shapes)) * math.prod(self.shapes[0])
