"""SSD's normalisation: scales each sample, or the channels at each position, to a learned L2 norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine import proto
from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Normalize")
class Normalize(Layer):
    """Bottom and top (N, C, ...): x scale / sqrt(sum of x^2 + eps), the sum over all of a sample, or, `across_spatial:
    false`, over the channels of a position; params: scale (), or (C) with `channel_shared: false`; 1 without a filler.
    """

    @property
    def param(self):
        return self.message.norm_param

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {self.shapes[0]}")
        return [self.shapes[0]]

    def make_params(self) -> list[Parameter]:
        ones = proto.FillerParameter(type="constant", value=1)
        filler = self.param.scale_filler if self.param.HasField("scale_filler") else ones
        return [Parameter(() if self.param.channel_shared else self.shapes[0][1:2], filler)]

    def lower(self, builder: Builder) -> None:
        attributes = {"across_spatial": self.param.across_spatial, "eps": self.param.eps}
        builder.op("Normalize", self, [builder.plain(self, builder.tensor(self.bottoms[0]))], attributes)

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])
