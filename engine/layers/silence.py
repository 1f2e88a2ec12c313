"""Reads blobs that no other layer reads, so that they do not become outputs of the net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Silence")
class Silence(Layer):
    """Reads its bottoms, of any shapes, and does nothing (Caffe's layer). It has no tops, and no gradient flows into
    its bottoms."""

    bf16 = True

    bottom_range = (1, None)
    top_range = (0, 0)

    def infer(self) -> list[Shape]:
        return []

    def lower(self, builder: Builder) -> None:
        """Adds no op."""
