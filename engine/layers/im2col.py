"""Unrolls the window of a convolution at each position into channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.convolution import Convolution
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Im2col")
class Im2col(Convolution):
    """Copies the window of convolution_param at every position, channel by channel, with zeros where it lies in padding
    (Caffe's layer). It has no parameters. Bottom: (N, C, spatial...). Top: (N, C * product of kernel, out...)."""

    bottom_range = (1, 1)
    top_range = (1, 1)
    bf16 = False

    def check_axes(self) -> None:
        """Raises ConfigError unless the bottom is (N, C, spatial...)."""
        super().check_axes()
        if len(self.shapes[0]) < 3:
            raise self.error(f"expected a bottom of at least 3 axes (N, C, and spatial ones), got {self.shapes[0]}")
        if self.axis != 1:
            raise self.error(f"expected axis 1 for the channels, the only one supported, got {self.param.axis}")

    def infer(self) -> list[Shape]:
        self.check_axes()
        shape = self.shapes[0]
        channels = shape[1] * math.prod(self.window["kernel"])
        return [(shape[0], channels, *self._spatial_output(shape[2:]))]

    def make_params(self) -> list[Parameter]:
        return []

    def attributes(self) -> Attributes:
        return {**self.window}

    def absorb(self, following: Layer) -> bool:
        return False

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op("Im2col", self, [x], self.attributes())

    def flops(self) -> int:
        return 0
