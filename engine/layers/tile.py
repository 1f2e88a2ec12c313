"""Repeats a blob along an axis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Tile")
class Tile(Layer):
    """Repeats the bottom `tiles` times along `axis` (1) (Caffe's layer). Bottom: any shape; top: the same, but that
    axis is `tiles` times as long."""

    bf16 = True

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.tile_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        shape, axis, tiles = self.shapes[0], self.axis, self.message.tile_param.tiles
        if tiles < 1:
            raise self.error(f"expected tiles above 0, got {tiles}")
        return [(*shape[:axis], shape[axis] * tiles, *shape[axis + 1 :])]

    def lower(self, builder: Builder) -> None:
        x, axis = builder.tensor(self.bottoms[0]), self.axis
        block = re.search(r"(\d+)b$", x.layout)  # the channels of a block: 16 in aBcd16b
        if axis > 1 or self.shapes[0][1:2] == (1,) or (axis == 1 and block and self.shapes[0][1] % int(block[1])):
            x = builder.plain(self, x)
        else:
            x = builder.by_sample(self, x)
        builder.op("Tile", self, [x], {"axis": axis, "tiles": self.message.tile_param.tiles})

    def flops(self) -> int:
        return 0
