"""Computes min(x, 0), or negative_slope * x where x is positive, as FlowNet 2 does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

_NEGATED = {"power": 1.0, "scale": -1.0, "shift": 0.0}


@register("NegReLU")
class NegReLU(Activation):
    """Computes -ReLU(-x), with the slope of relu_param (FlowNet 2's layer). Bottom and top: any shape."""

    bf16 = True

    def lower(self, builder: Builder) -> None:
        shapes = [self.shapes[0]]
        negated = builder.op("Power", self, [builder.tensor(self.bottoms[0])], _NEGATED, tops=[], shapes=shapes)[0]
        slope = {"negative_slope": self.message.relu_param.negative_slope}
        y = builder.op("ReLU", self, [negated], slope, tops=[], shapes=shapes)[0]
        builder.op("Power", self, [y], _NEGATED)
