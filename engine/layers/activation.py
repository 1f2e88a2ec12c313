"""The base of layers that apply a function to each element."""

from __future__ import annotations

from engine.layers.base import Layer, Shape


class Activation(Layer):
    """Bottom and top: any shape."""

    def infer(self) -> list[Shape]:
        return [self.shapes[0]]
