"""Computes the boxes that a region proposal network suggests (Faster R-CNN)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

RATIOS, SCALES = (0.5, 1.0, 2.0), (8.0, 16.0, 32.0)  # py-faster-rcnn's, if the text gives none


@np.errstate(over="raise", divide="raise", invalid="raise")
def anchor_boxes(base: int, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """Returns the A anchors around the first pixel, (A, 4) of x1, y1, x2, y2: ratio by ratio, and scale by scale for
    each. base: the side of a square of ratio and scale 1, in pixels of the net's input."""
    anchors = []
    for ratio in ratios or RATIOS:
        width = np.round(math.sqrt(base * base / ratio))
        height = np.round(width * ratio)
        for scale in scales or SCALES:
            reach = (np.array([width, height]) * scale - 1) / 2
            center = (base - 1) / 2
            anchors.append([*(center - reach), *(center + reach)])
    return np.array(anchors)


@register("Proposal")
class Proposal(Layer):
    """Proposes regions from the predictions for A = ratios * scales anchors at each pixel (py-faster-rcnn's layer).

    Bottoms: scores (N, 2 A, H, W), those of the background first, then those of objects; offsets (N, 4 A, H, W); and
    image sizes (N or 1, 3) of height, width and scale. Tops: regions (N post_nms_topn, 5) of image, x1, y1, x2, y2 in
    pixels of the net's input, for each image the best first, and, if given, their scores (N post_nms_topn, 1).

    Anchors are moved by their offsets and clipped to the image. Those with a side below min_size * scale are dropped,
    and of the others the pre_nms_topn best are kept. Of these a region stays if it overlaps no better one by more than
    nms_thresh. Caffe's tops have as many rows as there are regions; here unused rows hold -1, which ROIPooling and
    PSROIPooling leave out.
    """

    bottom_range = (3, 3)
    top_range = (1, 2)
    differentiable = False
    constant_bottoms = frozenset({0, 1, 2})

    @property
    def param(self):
        return self.message.proposal_param

    def anchors(self) -> np.ndarray:
        return anchor_boxes(self.param.base_size, self.param.ratio, self.param.scale)

    def infer(self) -> list[Shape]:
        scores, offsets, sizes = self.shapes
        param, anchors = self.param, len(self.param.ratio or RATIOS) * len(self.param.scale or SCALES)
        if len(scores) != 4 or scores[1] != 2 * anchors:
            raise self.error(f"expected scores ('N', {2 * anchors}, 'H', 'W') for {anchors} anchors, got {scores}")
        if offsets != (scores[0], 4 * anchors, *scores[2:]):
            raise self.error(f"expected offsets {(scores[0], 4 * anchors, *scores[2:])}, got {offsets}")
        if len(sizes) < 2 or sizes[0] not in (1, scores[0]) or math.prod(sizes[1:]) < 3:
            raise self.error(f"expected image sizes ({scores[0]}, 3) of height, width and scale, got {sizes}")
        if min(param.feat_stride, param.base_size, param.pre_nms_topn, param.post_nms_topn) < 1:
            raise self.error("expected feat_stride, base_size, pre_nms_topn and post_nms_topn of at least 1")
        if min([*param.ratio, *param.scale], default=1) <= 0:
            raise self.error(f"expected ratios and scales above 0, got {list(param.ratio)} and {list(param.scale)}")
        rows = scores[0] * param.post_nms_topn
        return [(rows, 5), (rows, 1)][: len(self.message.top)]

    def lower(self, builder: Builder) -> None:
        param = self.param
        inputs = builder.plain_bottoms(self)
        attributes = {
            "anchors": self.anchors().ravel().tolist(),
            "stride": param.feat_stride,
            "least_size": param.min_size,
            "candidates": param.pre_nms_topn,
            "nms_threshold": param.nms_thresh,
        }
        builder.op("Proposal", self, inputs, attributes)

    def flops(self) -> int:
        return 5 * math.prod(self.shapes[1])  # to move the anchors; what suppression takes depends on the scores
