"""Selects the hardest regions for a step to learn from (R-FCN; Shrivastava et al. 2016, arXiv 1604.03540)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Layer):
    """Keeps labels and weights of the `roi_per_img` regions of each image whose loss is largest (R-FCN's layer). Others
    get the label `ignore_label` and weights of 0.

    Bottoms: regions (R, 5, H, W) of image, x1, y1, x2, y2; their losses (R, 1, H, W); labels (R, 1, H, W); weights
    (R, C, H, W). H and W may be left out if they are 1. Tops: labels (R, 1, H, W), weights (R, C, H, W).
    """

    bottom_range = (4, 4)
    top_range = (2, 2)
    differentiable = False
    is_measure = True
    constant_bottoms = frozenset({0, 1, 2, 3})

    def infer(self) -> list[Shape]:
        regions, losses, labels, weights = self.shapes
        if len(regions) not in (2, 4) or regions[1] != 5:
            raise self.error(f"expected regions (R, 5, H, W), got {regions}")
        spatial = regions[2:] or (1, 1)
        positions = regions[0] * math.prod(spatial)
        for what, shape in (("losses", losses), ("labels", labels)):
            if math.prod(shape) != positions:
                raise self.error(f"expected {positions} {what}, one for each region, got {shape}")
        if len(weights) < 2 or weights[0] != regions[0] or math.prod(weights[2:]) != math.prod(spatial):
            raise self.error(f"expected weights {(regions[0], 'C', *spatial)}, got {weights}")
        if self.message.box_annotator_ohem_param.roi_per_img < 1:
            raise self.error("expected roi_per_img of at least 1, got 0")
        return [(regions[0], 1, *spatial), (*weights[:2], *spatial)]

    def lower(self, builder: Builder) -> None:
        param = self.message.box_annotator_ohem_param
        inputs = builder.plain_bottoms(self)
        attributes = {"per_image": param.roi_per_img, "ignore_label": param.ignore_label}
        builder.op("BoxAnnotatorOHEM", self, inputs, attributes)

    def flops(self) -> int:
        return math.prod(self.shapes[1])  # comparisons
