"""Turns planes left to right, or upside down, from happynear's fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Flip")
class Flip(Layer):
    """Bottom and top (N, C, H, W): columns in reverse, unless `flip_width: false`, and rows, with `flip_height`."""

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {self.shapes[0]}")
        return [self.shapes[0]]

    def lower(self, builder: Builder) -> None:
        param = self.message.flip_param
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        # Rows and columns in reverse are all positions in reverse.
        builder.op("Reverse", self, [x], {"begin": 3 - param.flip_height, "end": 3 + param.flip_width})

    def flops(self) -> int:
        return 0
