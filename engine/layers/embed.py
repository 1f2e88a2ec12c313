"""Looks up a learned vector for each of `input_dim` integers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Embed")
class Embed(Layer):
    """Gives row i of the weights for each whole number i, plus the bias (Caffe's layer). A forward raises DataError for
    a number outside [0, input_dim).

    Bottom: any shape. Top: (..., num_output); params: weights (input_dim, num_output) and, with `bias_term`, bias
    (num_output).
    """

    constant_bottoms = frozenset({0})

    @property
    def param(self):
        return self.message.embed_param

    def infer(self) -> list[Shape]:
        self.check_above_zero(self.param, "num_output", "input_dim")
        return [(*self.shapes[0], self.param.num_output)]

    def make_params(self) -> list[Parameter]:
        params = [Parameter((self.param.input_dim, self.param.num_output), self.param.weight_filler)]
        if self.param.bias_term:
            params.append(Parameter((self.param.num_output,), self.param.bias_filler))
        return params

    def lower(self, builder: Builder) -> None:
        rows = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op("Embed", self, [rows], {"bias": self.param.bias_term})

    def flops(self) -> int:
        return math.prod(self.tops[0].shape) if self.param.bias_term else 0
