"""Chooses what a region proposal network learns: which anchors are objects or background, and how far they are from the
true boxes (Ren et al. 2015, arXiv 1506.01497)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.proposal import RATIOS, SCALES, anchor_boxes
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("AnchorTarget")
class AnchorTarget(Layer):
    """Labels the anchors of one image (a Python layer in py-faster-rcnn).

    Bottoms: scores (1, 2 A, H, W) of A anchors at each pixel, of which only the shape counts; true boxes (G, 5) of x1,
    y1, x2, y2 and class, where rows of class 0 are unused; the image's size (1, 3) of height, width and scale; if
    given, the image, which is not read. Tops: labels (1, 1, A H, W), 1 for objects, 0 for background, -1 for anchors
    that do not count; then offsets to the true boxes, their weights inside of the loss, and outside of it,
    (1, 4 A, H, W) each.

    Only anchors count that lie within the image, or at most `allowed_border` pixels outside. An anchor is an object if
    it overlaps a true box by `positive_overlap`, or if no other anchor overlaps that box more; it is background if it
    overlaps all boxes by less than `negative_overlap`. If both are so it is an object or, with `clobber_positives`,
    background. At most `batch_size` anchors count, at most `fg_fraction` of these being objects. If there are more, the
    seed, the layer's name and the iteration choose.

    Weights inside are `bbox_inside_weight` (1, 1, 1, 1) for objects, and 0 for others. Those outside are 1 / the number
    of anchors that count or, with a `positive_weight` w above 0, w / objects and (1 - w) / backgrounds.
    """

    bottom_range = (3, 4)
    top_range = (4, 4)
    differentiable = False
    constant_bottoms = frozenset({0, 1, 2, 3})

    @property
    def param(self):
        return self.message.anchor_target_param

    def infer(self) -> list[Shape]:
        scores, truth, size = self.shapes[:3]
        param, anchors = self.param, len(self.param.ratio or RATIOS) * len(self.param.scale or SCALES)
        if len(scores) != 4 or scores[0] != 1 or scores[1] != 2 * anchors:
            raise self.error(
                f"expected scores (1, {2 * anchors}, 'H', 'W') of one image, {anchors} anchors, got {scores}"
            )
        if len(truth) < 2 or math.prod(truth[1:]) != 5:
            raise self.error(f"expected true boxes (G, 5) of x1, y1, x2, y2 and class, got {truth}")
        if math.prod(size) < 2:
            raise self.error(f"expected an image size (1, 3) of height, width and scale, got {size}")
        if min(param.feat_stride, param.base_size, param.batch_size) < 1 or not 0 <= param.fg_fraction <= 1:
            raise self.error("expected feat_stride, base_size and batch_size of at least 1, and fg_fraction in [0, 1]")
        if min([*param.ratio, *param.scale], default=1) <= 0:
            raise self.error(f"expected ratios and scales above 0, got {list(param.ratio)} and {list(param.scale)}")
        if not (param.positive_weight < 0 or 0 < param.positive_weight < 1):
            raise self.error(f"expected positive_weight between 0 and 1, or below 0, got {param.positive_weight:g}")
        if len(param.bbox_inside_weight) not in (0, 4):
            raise self.error(f"expected 4 values of bbox_inside_weight, got {len(param.bbox_inside_weight)}")
        offsets = (1, 4 * anchors, *scores[2:])
        return [(1, 1, anchors * scores[2], scores[3]), offsets, offsets, offsets]

    def lower(self, builder: Builder) -> None:
        param = self.param
        inputs = [builder.plain(self, builder.tensor(blob)) for blob in self.bottoms[:3]]
        attributes = {
            "anchors": anchor_boxes(param.base_size, param.ratio, param.scale).ravel().tolist(),
            "stride": param.feat_stride,
            "border": param.allowed_border,
            "batch_size": param.batch_size,
            "positives": int(param.fg_fraction * param.batch_size),
            "positive_overlap": param.positive_overlap,
            "negative_overlap": param.negative_overlap,
            "clobber": param.clobber_positives,
            "positive_weight": param.positive_weight,
            "inside_weights": list(param.bbox_inside_weight) or [1.0] * 4,
        }
        builder.op("AnchorTarget", self, inputs, attributes)

    def flops(self) -> int:
        return 10 * math.prod(self.tops[0].shape) * self.shapes[1][0]
