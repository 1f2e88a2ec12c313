"""Merges axes `axis` (1) to `end_axis` (-1, both included) into one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Flatten")
class Flatten(Layer):
    """Merges axes, and keeps all values in their order (Caffe's layer). Bottom: any shape. Top: that shape, with the
    axes `axis` (1) to `end_axis` (-1), both included, as one."""

    bf16 = True

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.message.flatten_param
        first = self.canonical_axis(param.axis, len(shape))
        last = self.canonical_axis(param.end_axis, len(shape))
        if last < first:
            raise self.error(f"expected end_axis at or after axis, got axis {param.axis} and end_axis {param.end_axis}")
        return [(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])]

    def lower(self, builder: Builder) -> None:
        builder.view(self, builder.tensor(self.bottoms[0]), self.tops[0].shape, self.tops[0])

    def flops(self) -> int:
        return 0
