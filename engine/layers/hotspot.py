"""Draws a bell around each point, in a plane of its own, as nets that find landmarks learn it (happynear's fork)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Hotspot")
class Hotspot(Layer):
    """Computes exp(-d^2 / 2 s^2) / (2 pi s^2), where d is the distance of a pixel from the point and s is
    `gaussian_std` (happynear's layer). Values up to 1e-4 become 0.

    Bottoms: points (N, 2K), x and y of each; unless `output_height` and `output_width` are given, a blob (N, C, H, W),
    of which only H and W count. Top: (N, K, H, W).

    Points are in pixels of a picture of `data_width` x `data_height`, counted from its middle or, with
    `mean_removed: false`, from its corner.
    """

    bottom_range = (1, 2)
    constant_bottoms = frozenset({0, 1})

    def infer(self) -> list[Shape]:
        param, points = self.message.hotspot_param, self.shapes[0]
        if len(points) < 2 or math.prod(points[1:]) % 2:
            raise self.error(f"expected points (N, 2K), x and y of each, got {points}")
        if not param.data_height or not param.data_width:
            raise self.error("data_height and data_width are missing: the size of the picture that the points are of")
        if not param.gaussian_std > 0:
            raise self.error(f"expected gaussian_std above 0, got {param.gaussian_std:g}")
        height, width = param.output_height, param.output_width
        if not height or not width:
            if len(self.shapes) < 2 or len(self.shapes[1]) != 4:
                raise self.error("expected output_height and output_width, or a second bottom (N, C, H, W)")
            height, width = self.shapes[1][2:]
        return [(points[0], math.prod(points[1:]) // 2, height, width)]

    def lower(self, builder: Builder) -> None:
        param, (height, width) = self.message.hotspot_param, self.tops[0].shape[2:]
        points = builder.plain(self, builder.tensor(self.bottoms[0]))
        attributes = {
            "deviation": param.gaussian_std,
            "scale_x": width / param.data_width,
            "scale_y": height / param.data_height,
            "shift_x": width / 2 if param.mean_removed else 0.0,
            "shift_y": height / 2 if param.mean_removed else 0.0,
        }
        builder.op("Hotspot", self, [points], attributes)
