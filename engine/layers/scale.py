"""Multiplies by coefficients, usually one per channel, and optionally adds others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine import proto
from engine.layers.affine import Affine
from engine.layers.base import Attributes, Parameter
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Scale")
class Scale(Affine):
    """Computes scale * x, or scale * x + shift with `bias_term` (Caffe's layer). Bottoms: x, and the scale in the
    two-bottom form; top: x's shape; params: scale (in the one-bottom form; 1 without a filler) and, with `bias_term`,
    shift (0 without a filler), of the scale's shape.

    happynear's `min_value` and `max_value` limit the scale after each update.
    """

    @property
    def param(self):
        return self.message.scale_param

    @property
    def is_per_channel(self) -> bool:
        """Whether the scale is a parameter with one number for each channel, along axis 1."""
        return len(self.bottoms) == 1 and self.axis == 1 and self.params[0].shape == self.shapes[0][1:2]

    def make_params(self) -> list[Parameter]:
        shape, params = self.coefficient_shape, []
        if len(self.shapes) == 1:
            ones = proto.FillerParameter(type="constant", value=1)
            filler = self.param.filler if self.param.HasField("filler") else ones
            params.append(Parameter(shape, filler, bounds=self._bounds))
        if self.param.bias_term:
            params.append(Parameter(shape, self.param.bias_filler))
        return params

    @property
    def _bounds(self) -> tuple[float, float]:
        param = self.param
        least = param.min_value if param.HasField("min_value") else -math.inf
        most = param.max_value if param.HasField("max_value") else math.inf
        if least > most:
            raise self.error(f"expected min_value up to max_value, got {least:g} and {most:g}")
        return least, most

    def attributes(self) -> Attributes:
        return {**super().attributes(), "bias": self.param.bias_term}

    def lower(self, builder: Builder) -> None:
        if self.shapes[1:] == self.shapes[:1] and not self.param.bias_term:
            builder.op("EltwiseProduct", self, [builder.tensor(blob) for blob in self.bottoms])
        else:
            super().lower(builder)

    def flops(self) -> int:
        return (1 + self.param.bias_term) * math.prod(self.shapes[0])
