"""Normalises values by those around them, across channels or within each (local response normalisation)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register


@register("LRN")
class LRN(Layer):
    """Computes x / (k + alpha / n * sum of x^2)^beta, where the sum is over n neighbours, x among them (Caffe's layer).
    Bottom and top (N, C, H, W).

    The neighbours are `local_size` channels at the same pixel or, WITHIN_CHANNEL, a square of local_size pixels a side
    in the same channel; there k is 1 whatever the net says.
    """

    bf16 = True

    @property
    def param(self):
        return self.message.lrn_param

    @property
    def across(self) -> bool:
        """Whether the sum is over channels."""
        return self.param.norm_region == self.param.ACROSS_CHANNELS

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {self.shapes[0]}")
        if self.param.local_size % 2 == 0:
            raise self.error(f"expected an odd local_size, got {self.param.local_size}")
        return [self.shapes[0]]

    def attributes(self) -> Attributes:
        param = self.param
        return {
            "local_size": param.local_size,
            "alpha": param.alpha,
            "beta": param.beta,
            "k": param.k if self.across else 1.0,
            "across_channels": self.across,
        }

    def flops(self) -> int:
        window = self.param.local_size if self.across else self.param.local_size**2
        return math.prod(self.shapes[0]) * (2 * window + 3)
