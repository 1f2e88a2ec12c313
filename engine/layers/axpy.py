"""Computes a x + y with a factor a for each channel of each sample, as in squeeze-and-excitation nets
(Hu et al. 2017, arXiv 1709.01507)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Axpy")
class Axpy(Layer):
    """Computes a x + y (SENet's layer). Bottoms: a (N, C) or (N, C, 1, 1), x (N, C, ...), y (as x). Top: as x."""

    bf16 = True
    bottom_range = (3, 3)

    def infer(self) -> list[Shape]:
        a, x, y = self.shapes
        if len(x) < 2 or a[:2] != x[:2] or math.prod(a[2:]) != 1:
            raise self.error(f"expected a first bottom {x[:2]} or {(*x[:2], 1, 1)} for a second one {x}, got {a}")
        if x != y:
            raise self.error(f"expected second and third bottoms of one shape, got {x} and {y}")
        return [x]

    def lower(self, builder: Builder) -> None:
        a, x, y = (builder.tensor(blob) for blob in self.bottoms)
        a = builder.view(self, a, self.shapes[1][:2])
        builder.op("Axpy", self, [x, a, y], {"axis": 0, "num_axes": 2})

    def flops(self) -> int:
        return 2 * super().flops()
