"""Moves the pixels of a blob as a flow says (FlowNet 2, arXiv 1612.01925)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("FlowWarp")
class FlowWarp(Layer):
    """Gives each pixel the value of x at the place to which its flow leads (FlowNet 2's layer).

    Bottoms: x (N, C, H, W); flow (N, 2, H, W), along columns and then along rows, in pixels. Top: x's shape. Between
    pixels x is interpolated bilinearly. If a place lies outside of x the value is 0 or, with
    `fill_value: NOT_A_NUMBER`, NaN.
    """

    bottom_range = (2, 2)

    def infer(self) -> list[Shape]:
        x, flow = self.shapes
        if len(x) != 4 or flow != (x[0], 2, *x[2:]):
            raise self.error(f"expected a bottom (N, C, H, W) and a flow (N, 2, H, W), got {x} and {flow}")
        return [x]

    def lower(self, builder: Builder) -> None:
        param = self.message.flow_warp_param
        inputs = builder.plain_bottoms(self)
        builder.op("FlowWarp", self, inputs, {"fill": 0.0 if param.fill_value == param.ZERO else math.nan})

    def flops(self) -> int:
        return 8 * math.prod(self.shapes[0])
