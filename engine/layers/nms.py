"""Finds the peaks of heat maps (OpenPose, Cao et al. 2017, arXiv 1611.08050)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Nms")
class Nms(Layer):
    """Finds pixels that are above `threshold` and above their eight neighbours (OpenPose's layer). Bottom (N, C, H, W);
    top (N, num_parts, max_peaks + 1, 3), for the first num_parts channels.

    The first row holds the number of peaks of the channel, 0 and 0. The next rows hold a peak each: column and row of
    the center of the values above 0 that are at most three pixels away, and the peak's value. They are the first
    max_peaks peaks, from top to bottom; the rows that are left are 0.
    """

    differentiable = False

    @property
    def param(self):
        return self.message.nms_param

    def infer(self) -> list[Shape]:
        shape, parts = self.shapes[0], self.param.num_parts
        if len(shape) != 4:
            raise self.error(f"expected a bottom (N, C, H, W), got {shape}")
        if not 1 <= parts <= shape[1]:
            raise self.error(f"expected num_parts from 1 to {shape[1]}, the channels of the bottom, got {parts}")
        return [(shape[0], parts, self.param.max_peaks + 1, 3)]

    def attributes(self) -> Attributes:
        return {"threshold": self.param.threshold}

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        builder.op(self.type, self, [x], self.attributes())

    def flops(self) -> int:
        return 9 * math.prod(self.shapes[0])
