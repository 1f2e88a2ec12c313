"""Mirrors planes left to right or upside down, from happynear's fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Flip")
class Flip(Layer):
    """Reverses columns, unless `flip_width: false`, and with `flip_height` rows, too (happynear's layer). Bottom and
    top: (N, C, H, W)."""

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {self.shapes[0]}")
        return [self.shapes[0]]

    def lower(self, builder: Builder) -> None:
        param = self.message.flip_param
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        # Axes 2 (rows) and 3 (columns) are reversed as one: both in reverse are all positions in reverse.
        builder.op("Reverse", self, [x], {"begin": 3 - param.flip_height, "end": 3 + param.flip_width})

    def flops(self) -> int:
        return 0
