"""Adds coefficients, usually one per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.affine import Affine
from engine.layers.base import Parameter
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Bias")
class Bias(Affine):
    """Computes x + shift, where the shift has some of x's axes (Caffe's layer; see Affine). Bottoms: x, and the shift
    in the two-bottom form. Top: x's shape; params: shift (in the one-bottom form)."""

    @property
    def param(self):
        return self.message.bias_param

    def make_params(self) -> list[Parameter]:
        return [Parameter(self.coefficient_shape, self.param.filler)] if len(self.shapes) == 1 else []

    def lower(self, builder: Builder) -> None:
        if self.shapes[1:] == self.shapes[:1]:
            inputs = [builder.tensor(blob) for blob in self.bottoms]
            builder.op("EltwiseSum", self, inputs, {"coefficients": [1.0, 1.0]})
        else:
            super().lower(builder)
