"""Adds coefficients, usually one per channel."""

from __future__ import annotations

from engine.layers.affine import Affine
from engine.layers.base import Parameter
from engine.layers.registry import register


@register("Bias")
class Bias(Affine):
    """Bottoms: x, and the shift in the two-bottom form; top: x's shape; params: shift (in the one-bottom form)."""

    @property
    def param(self):
        return self.message.bias_param

    def make_params(self) -> list[Parameter]:
        return [Parameter(self.coefficient_shape, self.param.filler)] if len(self.shapes) == 1 else []
