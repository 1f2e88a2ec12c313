"""Sums or averages the values along an axis, all of them or those of each level of a pyramid (yjxiong's fork)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("BatchReduction")
class BatchReduction(Layer):
    """Reduces the terms along an axis to their SUM, their MEAN or, with TOPK, to the mean of the `k` (1) largest
    (yjxiong's layer).

    Bottom: (outer..., terms, inner...), with the terms along the `axis` of reduction_param. Top: (outer..., inner...).

    With `level`, unless that is a single 1, the top is (outer..., levels, inner...): a level reduces level^2 terms side
    by side, and the levels together reduce all terms. With `pos` the bottom is (outer..., terms, terms, inner...), and
    only its diagonal counts.
    """

    @property
    def reduction(self):
        return self.message.batch_reduction_param.reduction_param

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.reduction.axis, len(self.shapes[0]))

    @property
    def levels(self) -> list[int]:
        """The levels, if they have an axis in the top; [] if all terms are reduced together."""
        levels = list(self.message.batch_reduction_param.level)
        return [] if levels == [1] else levels

    @property
    def counts(self) -> list[int]:
        """How many terms are reduced together, for each level."""
        return [level**2 for level in self.levels] or [self.shapes[0][self.axis]]

    @property
    def axes(self) -> int:
        """How many axes of the bottom the top does not have."""
        return 2 if self.message.batch_reduction_param.pos else 1

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.reduction
        if not shape:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        if param.operation not in (param.SUM, param.MEAN, param.TOPK):
            raise self.error(f"expected operation SUM, MEAN or TOPK, got {param.ReductionOp.Name(param.operation)}")
        if param.coeff != 1:
            raise self.error(f"expected coeff of 1, for the fork does not read it, got {param.coeff:g}")
        if param.HasField("k") and param.operation != param.TOPK:
            raise self.error(f"k is for operation TOPK, not for {param.ReductionOp.Name(param.operation)}: take it out")
        counts, axis = self.counts, self.axis
        if min(self.levels, default=1) < 1 or sum(counts) != shape[axis]:
            raise self.error(
                f"expected levels whose squares add up to the size of axis {axis}, {shape[axis]}, got {self.levels}"
            )
        if self.axes == 2 and (len(counts) > 1 or shape[axis + 1 : axis + 2] != (shape[axis],)):
            raise self.error(
                f"expected with pos: true one level at most, and axes {axis} and {axis + 1} of one size, got levels "
                f"{self.levels} and a bottom {shape}"
            )
        if param.operation == param.TOPK and (len(counts) > 1 or not 1 <= param.k <= counts[0]):
            raise self.error(
                f"expected for TOPK one level at most, and k from 1 to {counts[0]}, the number of terms, got levels "
                f"{self.levels} and k {param.k}"
            )
        groups = (len(self.levels),) if self.levels else ()
        return [(*shape[:axis], *groups, *shape[axis + self.axes :])]

    def attributes(self) -> Attributes:
        shape, param = self.shapes[0], self.reduction
        return {
            "outer": math.prod(shape[: self.axis]),
            "counts": self.counts,
            "stride": shape[self.axis] + 1 if self.axes == 2 else 1,
            "mean": param.operation == param.MEAN,
            "top_k": param.k if param.operation == param.TOPK else 0,
        }

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op(self.type, self, [x], self.attributes())

    def flops(self) -> int:
        return math.prod(self.shapes[0])
