"""What layers share that apply a function to each element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


class Activation(Layer):
    """Bottom and top: any shape."""

    def infer(self) -> list[Shape]:
        return [self.shapes[0]]


class Unary(Activation):
    """An activation of a kernel that does not know where a layout has padding, which must stay zero."""

    def lower(self, builder: Builder) -> None:
        builder.op(self.type, self, [self.unpadded(builder)], self.attributes())

    def unpadded(self, builder: Builder) -> Tensor:
        """The bottom, in a layout without padding."""
        x = builder.tensor(self.bottoms[0])
        bytes_each = 2 if x.dtype == "bf16" else 4
        return x if x.nbytes == bytes_each * math.prod(x.shape) else builder.plain(self, x)
