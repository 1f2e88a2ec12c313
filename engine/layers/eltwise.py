"""Computes the weighted sum, the product or the maximum of blobs, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Eltwise")
class Eltwise(Layer):
    """Computes, by `operation`, the SUM of blobs times `coeff` (1), their product (PROD) or maximum (MAX)
    (Caffe's layer).

    Bottoms: one or more of one shape. Top: that shape. A MAX ignores coeff. A single bottom, as in FlowNet 2's nets, is
    multiplied by its coeff in a SUM.
    """

    bf16 = True
    bottom_range = (1, None)
    relu = False  # what `absorb` has taken over

    @property
    def param(self):
        return self.message.eltwise_param

    def infer(self) -> list[Shape]:
        for number, shape in enumerate(self.shapes):
            if shape != self.shapes[0]:
                raise self.error(f"expected bottoms of one shape, {self.shapes[0]}, got {shape} for bottom {number}")
        coefficients = len(self.param.coeff)
        if coefficients and self.param.operation == self.param.PROD:
            raise self.error("expected coeff with operation SUM only")
        if coefficients not in (0, len(self.shapes)):
            raise self.error(f"expected one coeff for each of {len(self.shapes)} bottoms or none, got {coefficients}")
        return [self.shapes[0]]

    @property
    def adds_two(self) -> bool:
        """Whether the layer is a plain sum of two blobs."""
        plain = self.param.operation == self.param.SUM and not self.relu
        return plain and len(self.bottoms) == 2 and all(coefficient == 1 for coefficient in self.param.coeff)

    def absorb(self, following: Layer) -> bool:
        """Takes over a ReLU without slope, if the layer is a sum."""
        if self.relu or self.param.operation != self.param.SUM or len(self.bottoms) == 1:
            return False
        self.relu = following.type == "ReLU" and following.message.relu_param.negative_slope == 0
        return self.relu

    def lower(self, builder: Builder) -> None:
        inputs = [builder.tensor(blob) for blob in self.bottoms]
        if len(inputs) == 1:
            sums_up = self.param.operation == self.param.SUM
            scale = self.param.coeff[0] if sums_up and self.param.coeff else 1.0
            builder.op("Power", self, inputs, {"power": 1.0, "scale": scale, "shift": 0.0})
        elif self.param.operation == self.param.SUM:
            coefficients = list(self.param.coeff) or [1.0] * len(inputs)
            builder.op("EltwiseSum", self, inputs, {"coefficients": coefficients, "relu": self.relu})
        else:
            product = self.param.operation == self.param.PROD
            builder.op("EltwiseProduct" if product else "EltwiseMax", self, inputs)

    def flops(self) -> int:
        return (len(self.bottoms) - 1 + self.relu + sum(c != 1 for c in self.param.coeff)) * math.prod(self.shapes[0])
