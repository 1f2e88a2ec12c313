"""Sums or averages over all axes from `axis` (0) on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

TERMS = {1: "value", 2: "magnitude", 3: "square", 4: "value"}  # what SUM, ASUM, SUMSQ and MEAN add up


@register("Reduction")
class Reduction(Layer):
    """Computes `coeff` times the SUM, ASUM (of magnitudes), SUMSQ (of squares) or MEAN of inner (Caffe's layer). Bottom
    (outer..., inner...), split at `axis`; top (outer...)."""

    bf16 = True
    wide_tops = True

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.reduction_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        param = self.message.reduction_param
        if param.operation not in TERMS or param.HasField("k"):
            raise self.error("expected operation SUM, ASUM, SUMSQ or MEAN; TOPK and its k are for BatchReduction")
        return [self.shapes[0][: self.axis]]

    def attributes(self) -> Attributes:
        param = self.message.reduction_param
        terms = math.prod(self.shapes[0][self.axis :]) if param.operation == param.MEAN else 1
        return {"term": TERMS[param.operation], "coefficient": param.coeff / terms}

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        x = builder.by_sample(self, x) if self.axis <= 1 else builder.plain(self, x)
        builder.op("Reduction", self, [x], self.attributes())

    def flops(self) -> int:
        return math.prod(self.shapes[0])
