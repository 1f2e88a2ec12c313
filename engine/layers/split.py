"""Hands one blob to several readers; inserted by the graph, and usable in a net."""

from __future__ import annotations

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register


@register("Split")
class Split(Layer):
    """Gives each top the values of the bottom, and in backward adds their gradients (Caffe's layer). Bottom and tops:
    one shape, any."""

    bf16 = True
    inserted = False  # True if it is the graph's, not the text's
    kept: int | None = None  # the top with which the next Concat of a chain goes on

    top_range = (1, None)

    def infer(self) -> list[Shape]:
        return [self.shapes[0]] * len(self.message.top)

    def attributes(self) -> Attributes:
        return {} if self.kept is None else {"kept": self.kept}

    def flops(self) -> int:
        return 0
