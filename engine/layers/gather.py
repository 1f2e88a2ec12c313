"""Passes its bottoms on, where Gather and Scatter of yjxiong's fork hand batches over between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Gather", "Scatter")
class Gather(Layer):
    """Passes its bottoms on (yjxiong's Gather and Scatter). Bottoms: one or more, of any shapes. Tops: one for each
    bottom, of its shape.

    In the fork, the layers after a Gather compute the batches of all ranks on each rank, and those after a Scatter the
    rank's own batch again. The gradients that this engine averages over the ranks are the same.
    """

    bf16 = True

    bottom_range = (1, None)
    top_range = (1, None)
    in_pairs = True

    def infer(self) -> list[Shape]:
        if len(self.message.top) != len(self.shapes):
            raise self.error(f"expected a top for each bottom, got {len(self.shapes)} and {len(self.message.top)}")
        return self.shapes

    def lower(self, builder: Builder) -> None:
        for bottom, top in zip(self.bottoms, self.tops, strict=True):
            builder.view(self, builder.tensor(bottom), top.shape, top)

    def flops(self) -> int:
        return 0
