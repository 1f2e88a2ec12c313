"""Reverses an axis, as nets for text do that read lines in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Reverse", "ReverseAxis")
class Reverse(Layer):
    """Reverses the order of the entries along `axis` (CTPN's layer). Bottom and top: any shape."""

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.reverse_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        _ = self.axis  # raises
        return [self.shapes[0]]

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op("Reverse", self, [x], {"begin": self.axis, "end": self.axis + 1})

    def flops(self) -> int:
        return 0
