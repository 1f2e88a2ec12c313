"""Enlarges its bottom by a transposed convolution."""

from __future__ import annotations

import math

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.convolution import Convolution, grouped
from engine.layers.registry import register


@register("Deconvolution")
class Deconvolution(Convolution):
    """Computes the gradient that a Convolution with its window and weights gives to a bottom (Caffe's layer).

    Bottoms and tops are as those of Convolution, but each spatial axis of a top has stride (size - 1) + dilation
    (kernel - 1) + 1 - 2 pad pixels.

    params: weights (C, num_output / group, kernel...), those of the convolution that this one reverses, and, with
    `bias_term`, bias (num_output).
    """

    op_type = "Deconvolution"

    def _spatial_output(self, spatial: Shape) -> Shape:
        """Returns the spatial axes of the top. Raises ConfigError if nothing is left of one."""
        window = self.window
        sizes = []
        for i, size in enumerate(spatial):
            extent = window["dilation"][i] * (window["kernel"][i] - 1) + 1
            enlarged = window["stride"][i] * (size - 1) + extent - 2 * window["pad"][i]
            if enlarged < 1:
                raise self.error(
                    f"expected a top of at least 1, got {enlarged} on axis {self.axis + 1 + i} of {self.shapes[0]}; "
                    f"pad {window['pad'][i]} is too large for a kernel of {extent}"
                )
            sizes.append(enlarged)
        return tuple(sizes)

    def make_params(self) -> list[Parameter]:
        param = self.param
        weights = (self.seen[1], param.num_output // param.group, *self.window["kernel"])
        params = [Parameter(weights, param.weight_filler, dims=grouped(weights, param.group))]
        if param.bias_term:
            params.append(Parameter((param.num_output,), param.bias_filler))
        return params

    def absorb(self, following: Layer) -> bool:
        return False

    def kernels_by_rule(self, dtype: str) -> dict[str, str]:
        return {}

    def flops(self) -> int:
        products = math.prod(self.shapes[0]) * math.prod(self.params[0].shape[1:])
        return len(self.tops) * (2 * products + self.param.bias_term * math.prod(self.tops[0].shape))
