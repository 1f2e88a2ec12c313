"""Computes inner products with weights over all axes from `axis` (1) on: a fully connected layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Parameter, Shape
from engine.layers.registry import register
from engine.layers.weighted import Weighted

if TYPE_CHECKING:
    from engine.layers.builder import Builder

MAX_KERNEL_AXES = 5  # most axes of a bottom of oneDNN's inner product


@register("InnerProduct")
class InnerProduct(Weighted):
    """Computes x W^T + b (Caffe's layer).

    Bottom: (outer..., inner...), split at `axis`. Top: (outer..., num_output); params: weights (num_output, inner), or
    (inner, num_output) with `transpose`, and, with `bias_term`, bias (num_output).

    With `normalize`, of happynear's fork, each forward first scales the rows of the weights to length 1. Their gradient
    is that of the product alone.
    """

    @property
    def param(self):
        return self.message.inner_product_param

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.param.axis, len(self.shapes[0]))

    @property
    def _is_direct(self) -> bool:
        """Whether the kernel takes the bottom in its own shape, and so in any layout."""
        return self.axis == 1 and len(self.shapes[0]) <= MAX_KERNEL_AXES

    @property
    def rescales_weights(self) -> bool:
        return self.param.normalize

    @property
    def can_widen(self) -> bool:
        return not (self.part or self.activation or self.param.relu or self.adds)

    @property
    def takes_rows(self) -> bool:
        return not self._is_direct

    def infer(self) -> list[Shape]:
        self.check_above_zero(self.param, "num_output")
        if self.param.normalize and self.param.transpose:
            raise self.error("expected normalize without transpose: it scales rows of the weights")
        return [(*self.shapes[0][: self.axis], self.param.num_output)]

    def make_params(self) -> list[Parameter]:
        weights = (self.param.num_output, math.prod(self.shapes[0][self.axis :]))
        transposed = self.param.transpose
        shape = weights[::-1] if transposed else weights
        dims = (self.param.num_output, *self.shapes[0][1:]) if self._is_direct else weights
        params = [Parameter(shape, self.param.weight_filler, transposed=transposed, dims=dims)]
        if self.param.bias_term:
            params.append(Parameter((self.param.num_output,), self.param.bias_filler))
        return params

    def lower(self, builder: Builder) -> None:
        if self.param.normalize:
            builder.op("UnitRows", self, [], params=self.params[:1], tops=[], shapes=[])
        if self.part:
            self.lower_part(builder, self.part)
            return
        x, shape, top = builder.tensor(self.bottoms[0]), self.shapes[0], self.tops[0]
        direct = self._is_direct
        if not direct:
            x = builder.view(self, x, (math.prod(shape[: self.axis]), math.prod(shape[self.axis :])))
        last = direct and not self.param.relu
        rows = (x.shape[0], self.param.num_output)
        y = builder.op(
            "InnerProduct",
            self,
            [x],
            self.attributes(),
            tops=[top] if last else [],
            shapes=[rows],
        )[0]
        if self.param.relu:
            slope = {"negative_slope": self.param.negative_slope}
            y = builder.op("ReLU", self, [y], slope, params=[], tops=[top] if direct else [], shapes=[rows])[0]
        if not direct:
            builder.view(self, y, top.shape, top)

    def attributes(self) -> Attributes:
        return {**super().attributes(), "transpose": self.param.transpose, "wide": self.widens}

    def flops(self) -> int:
        outputs = math.prod(self.tops[0].shape)
        return outputs * (2 * math.prod(self.shapes[0][self.axis :]) + self.param.bias_term)
