"""Samples a blob at places that an affine map leads to (Spatial Transformer Networks, arXiv 1506.02025)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

NUMBERS = [f"theta_{row}_{column}" for row in (1, 2) for column in (1, 2, 3)]


@register("SpatialTransformer")
class SpatialTransformer(Layer):
    """Takes each pixel of the top from where an affine map leads in the bottom, by bilinear interpolation, as several
    forks do. Bottoms: x (N, C, H, W), and theta (N, ...), those of its six numbers that `st_param` does not give; top
    (N, C, output_H, output_W), by default of x's size.

    The pixel at (row, column), both from -1 to 1 over the top, is x at theta (row, column, 1), in the same measure over
    x. For forks with other conventions see docs/dialects.md.
    """

    bottom_range = (2, 2)

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset() if self.message.st_param.to_compute_dU else frozenset({0})

    def given(self) -> list[float]:
        """Returns the six numbers of theta, row by row; NaN stands for those that the second bottom has."""
        param = self.message.st_param
        return [getattr(param, name) if param.HasField(name) else math.nan for name in NUMBERS]

    def infer(self) -> list[Shape]:
        param, (x, theta) = self.message.st_param, self.shapes
        if param.transform_type != "affine" or param.sampler_type != "bilinear":
            raise self.error(
                f"expected transform_type affine and sampler_type bilinear, which are all that is supported, got "
                f"{param.transform_type} and {param.sampler_type}"
            )
        if len(x) != 4:
            raise self.error(f"expected a bottom (N, C, H, W), got {x}")
        wanted = sum(math.isnan(value) for value in self.given())
        if not theta or theta[0] != x[0] or math.prod(theta[1:]) != wanted:
            raise self.error(
                f"expected a theta ({x[0]}, {wanted}), six numbers for each sample less {6 - wanted} of st_param, got "
                f"{theta}"
            )
        size = (
            param.output_H if param.HasField("output_H") else x[2],
            param.output_W if param.HasField("output_W") else x[3],
        )
        if min(size) < 1:
            raise self.error(f"expected output_H and output_W of at least 1, got {size[0]} and {size[1]}")
        return [(*x[:2], *size)]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("SpatialTransformer", self, inputs, {"theta": self.given()})

    def flops(self) -> int:
        return 8 * math.prod(self.tops[0].shape)
