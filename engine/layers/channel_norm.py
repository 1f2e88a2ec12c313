"""Computes the L2 norm over the channels of each position, as FlowNet 2 does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ChannelNorm")
class ChannelNorm(Layer):
    """Computes sqrt(sum of x^2), where the sum is over the channels (FlowNet 2's layer). Bottom (N, C, ...); top
    (N, 1, ...)."""

    def infer(self) -> list[Shape]:
        shape = self.shapes[0]
        if len(shape) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {shape}")
        return [(shape[0], 1, *shape[2:])]

    def lower(self, builder: Builder) -> None:
        builder.op("ChannelNorm", self, [builder.plain(self, builder.tensor(self.bottoms[0]))])

    def flops(self) -> int:
        return 2 * math.prod(self.shapes[0])
