"""Converts to another precision; inserted by the precision pass between layers that differ."""

from __future__ import annotations

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register


@register("Cast")
class Cast(Layer):
    """Bottom and top of one shape; the top is bf16 with `to_bf16`, else float32. It is row-major with `in_rows`; else
    images become channels last on the way to bf16."""

    to_bf16 = False
    in_rows = False
    bf16 = True

    def infer(self) -> list[Shape]:
        return [self.shapes[0]]

    def attributes(self) -> Attributes:
        return {"bf16": self.to_bf16, "in_rows": self.in_rows}

    def flops(self) -> int:
        return 0
