"""Repeats a blob along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Tile")
class Tile(Layer):
    """Bottom: any shape; top: the same, but axis `axis` (1) is `tiles` times as long."""

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.tile_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        shape, axis, tiles = self.shapes[0], self.axis, self.message.tile_param.tiles
        if tiles < 1:
            raise self.error(f"expected tiles above 0, got {tiles}")
        return [(*shape[:axis], shape[axis] * tiles, *shape[axis + 1 :])]

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op("Tile", self, [x], {"axis": self.axis, "tiles": self.message.tile_param.tiles})

    def flops(self) -> int:
        return 0
