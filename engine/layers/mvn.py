"""Normalises the mean and variance of each channel, or of each sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("MVN")
class MVN(Layer):
    """Computes (x - mean) / (deviation + eps), or, with `normalize_variance: false`, x - mean (Caffe's layer). Mean and
    standard deviation are those of each channel of each sample or, with `across_channels`, of each sample.

    Bottom (N, C, ...); top: of its shape, but with at least 4 axes, for which axes of length 1 are added at the end.
    """

    bf16 = True

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {self.shapes[0]}")
        return [(*self.shapes[0], 1, 1)[: max(4, len(self.shapes[0]))]]

    def lower(self, builder: Builder) -> None:
        param = self.message.mvn_param
        attributes = {
            "across_channels": param.across_channels,
            "normalize_variance": param.normalize_variance,
            "eps": param.eps,
        }
        x, top = builder.tensor(self.bottoms[0]), self.tops[0]
        if self.shapes[0] == top.shape:
            builder.op("MVN", self, [x], attributes)
            return
        y = builder.op("MVN", self, [x], attributes, tops=[], shapes=self.shapes)[0]
        builder.view(self, y, top.shape, top)

    def flops(self) -> int:
        return (5 if self.message.mvn_param.normalize_variance else 2) * math.prod(self.shapes[0])
