"""Computes the softmax along `axis` (1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Softmax")
class Softmax(Layer):
    """Computes exp(x) / sum of exp(x), where the sum is along `axis` (1) (Caffe's layer). Bottom and top: any shape."""

    @property
    def asked_axis(self) -> int:
        return self.message.softmax_param.axis

    def infer(self) -> list[Shape]:
        self.canonical_axis(self.asked_axis, len(self.shapes[0]))
        return [self.shapes[0]]

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        if self.attributes()["axis"] != 1:  # blocks of channels have a fast kernel along channels only
            x = builder.plain(self, x)
        builder.op("Softmax", self, [x], self.attributes())

    def attributes(self) -> Attributes:
        return {"axis": self.canonical_axis(self.asked_axis, len(self.shapes[0]))}

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0])  # shift, exponential, sum, division
