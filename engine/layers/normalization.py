"""Scales each sample to length 1, under the names that this has in several forks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Normalization", "L2Normalization")
class Normalization(Layer):
    """Computes x / sqrt(sum of x^2), where the sum is over a sample, as several forks do. Bottom and top (N, ...). A
    sample of zeros stays as it is; in some forks it becomes NaN."""

    def infer(self) -> list[Shape]:
        if not self.shapes[0]:
            raise self.error("expected a bottom of samples (N, ...), got a single number")
        return [self.shapes[0]]

    def lower(self, builder: Builder) -> None:
        shape, x = self.shapes[0], builder.plain(self, builder.tensor(self.bottoms[0]))
        rows = (shape[0], math.prod(shape[1:]))
        attributes = {"l1": False, "eps": 0.0, "of_length": False}
        y = builder.op("UnitNorm", self, [builder.view(self, x, rows)], attributes, tops=[], shapes=[rows])[0]
        builder.view(self, y, shape, self.tops[0])

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])


@register("L2Norm", "NormalizationL2")
class L2Norm(Normalization):
    """Computes what Normalization does, for bottoms (N, C) or (N, C, 1, 1). It refuses others: some forks scale each
    sample of these, and some the channels of each position."""

    def infer(self) -> list[Shape]:
        if math.prod(self.shapes[0][2:]) != 1:
            raise self.error(
                f"forks with a {self.type} scale either each sample or the channels of each position, which differ for "
                f"{self.shapes[0]}: give the type Normalization for the first, or, for the second, Normalize with "
                "normalize_param {}"
            )
        return super().infer()
