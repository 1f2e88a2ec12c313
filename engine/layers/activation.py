"""What the layers share that apply a function to every number."""

from __future__ import annotations

from engine.layers.base import Layer, Shape


class Activation(Layer):
    """Bottom and top: any shape."""

    def infer(self) -> list[Shape]:
        return [self.shapes[0]]
