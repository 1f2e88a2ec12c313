"""Permutes the axes of a blob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Permute")
class Permute(Layer):
    """Makes axis `order`[i] of the bottom axis i of the top (SSD's layer). Bottom: any shape. Axes that `order` does
    not name follow in their order."""

    bf16 = True

    @property
    def order(self) -> list[int]:
        """The order of all axes. Raises ConfigError if the text's `order` is wrong."""
        given, rank = list(self.message.permute_param.order), len(self.shapes[0])
        if len(set(given)) != len(given) or any(axis >= rank for axis in given):
            raise self.error(f"expected different axes below {rank} in order, got {given}")
        return given + [axis for axis in range(rank) if axis not in given]

    def infer(self) -> list[Shape]:
        return [tuple(self.shapes[0][axis] for axis in self.order)]

    def lower(self, builder: Builder) -> None:
        x, order = builder.tensor(self.bottoms[0]), self.order
        if order == sorted(order):
            builder.view(self, x, self.tops[0].shape, self.tops[0])
        else:
            builder.op("Permute", self, [x], {"order": order})

    def flops(self) -> int:
        return 0
