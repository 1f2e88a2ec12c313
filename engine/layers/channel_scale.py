"""Multiplies all channels of a position by one number, as in the forks of happynear and PSPNet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ChannelScale", "SpatialProduct")
class ChannelScale(Layer):
    """Computes x scale (happynear's layer, and PSPNet's SpatialProduct).

    Bottoms: x (N, C, ...); scale, one number for each position, such as Normalize's second top. Top: x's shape. With
    `do_backward_scale: false` the scale gets no gradient.
    """

    bottom_range = (2, 2)

    @property
    def param(self):
        return self.message.channel_scale_param

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset() if self.param.do_backward_scale else frozenset({1})

    def infer(self) -> list[Shape]:
        x, scale = self.shapes
        if self.param.global_scale or not (self.param.do_forward and self.param.do_backward_feature):
            raise self.error("expected neither global_scale, nor do_forward or do_backward_feature false")
        if len(x) < 2 or scale[:1] != x[:1] or math.prod(scale) * x[1] != math.prod(x):
            raise self.error(f"expected a scale of one number for each position of {x}, got {scale}")
        return [x]

    def lower(self, builder: Builder) -> None:
        x, scale = builder.plain_bottoms(self)
        n, channels = self.shapes[0][:2]
        inner = math.prod(self.shapes[0][2:])
        if inner == 1:
            scale = builder.view(self, scale, (n,))
            builder.op("Scale", self, [x, scale], {"axis": 0, "num_axes": 1, "bias": False})
            return
        scale = builder.view(self, scale, (n, 1, inner))
        spread = builder.op(
            "Tile", self, [scale], {"axis": 1, "tiles": channels}, tops=[], shapes=[(n, channels, inner)]
        )[0]
        builder.op("EltwiseProduct", self, [x, builder.view(self, spread, self.shapes[0])])

    def flops(self) -> int:
        return math.prod(self.shapes[0])
