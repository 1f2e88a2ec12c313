"""Finds the indices of the `top_k` largest values, in descending order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ArgMax")
class ArgMax(Layer):
    """Finds the `top_k` (1) largest values along `axis` or, without `axis`, of each sample (Caffe's layer). Of equal
    values the last comes first.

    With `axis` the top has the bottom's shape, but top_k in place of that axis. It holds indices or, with
    `out_max_val`, values. Without `axis` the top is (N, 1, top_k), indices, or, with `out_max_val`, (N, 2, top_k),
    indices and then values; axes of 1 follow if the bottom has more than three axes.
    """

    differentiable = False

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def param(self):
        return self.message.argmax_param

    def infer(self) -> list[Shape]:
        shape, top_k = self.shapes[0], self.param.top_k
        if not shape:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        if self.param.HasField("axis"):
            axis = self.canonical_axis(self.param.axis, len(shape))
            choices, top = shape[axis], (*shape[:axis], top_k, *shape[axis + 1 :])
        else:
            choices = math.prod(shape[1:])
            top = (shape[0], 2 if self.param.out_max_val else 1, top_k, *[1] * (len(shape) - 3))
        if not 1 <= top_k <= choices:
            raise self.error(f"expected top_k from 1 to {choices}, the number of values to choose from, got {top_k}")
        return [top]

    def lower(self, builder: Builder) -> None:
        shape, by_sample = self.shapes[0], not self.param.HasField("axis")
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        if by_sample:
            x = builder.view(self, x, (shape[0], math.prod(shape[1:])))
        attributes = {
            "axis": 1 if by_sample else self.canonical_axis(self.param.axis, len(shape)),
            "top_k": self.param.top_k,
            "values": self.param.out_max_val and not by_sample,
            "pairs": self.param.out_max_val and by_sample,
        }
        builder.op("ArgMax", self, [x], attributes)

    def flops(self) -> int:
        return math.prod(self.shapes[0])  # comparisons
