"""Converts blobs to another precision. The precision pass puts it between layers that differ."""

from __future__ import annotations

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register


@register("Cast")
class Cast(Layer):
    """Converts x to bf16 with `to_bf16`, else to float32 (a layer of this engine's own). Bottom and top: any shape. The
    top is row-major with `in_rows`; otherwise images that become bf16 get channels last."""

    to_bf16 = False
    in_rows = False
    bf16 = True

    def infer(self) -> list[Shape]:
        return [self.shapes[0]]

    def attributes(self) -> Attributes:
        return {"bf16": self.to_bf16, "in_rows": self.in_rows}

    def flops(self) -> int:
        return 0
