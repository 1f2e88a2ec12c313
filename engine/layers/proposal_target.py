"""Chooses regions for a detector to learn from, and makes their targets (Ren et al. 2015, arXiv 1506.01497)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

DEVIATIONS = (0.1, 0.1, 0.2, 0.2)  # of offsets, in py-faster-rcnn's end-to-end training


@register("ProposalTarget")
class ProposalTarget(Layer):
    """Does what py-faster-rcnn's ProposalTargetLayer does, for one image. Bottoms: regions (R, 5) of image, x1, y1, x2,
    y2, unused if the image is negative, and true boxes (G, 5) of x1, y1, x2, y2, class, unused if the class is 0.

    Tops:
    - the chosen regions (batch_size, 5); true boxes may be among them,
    - their classes (batch_size), 0 for the background,
    - the offsets that lead to their true boxes (batch_size, 4 num_classes), from which `bbox_normalize_mean` is
      subtracted before they are divided by `bbox_normalize_std`,
    - weights for SmoothL1Loss, inside and outside (as the offsets). Offsets and weights are 0 but for the region's
      class.

    At most `fg_fraction` of the chosen overlap a true box by `fg_thresh` or more; the others overlap one by
    bg_thresh_lo to bg_thresh_hi. The seed, the layer's name and the iteration decide the choice. If there are too few,
    regions are repeated; Caffe's tops have fewer rows then.
    """

    bottom_range = (2, 2)
    top_range = (5, 5)
    differentiable = False
    constant_bottoms = frozenset({0, 1})

    @property
    def param(self):
        return self.message.proposal_target_param

    def infer(self) -> list[Shape]:
        (regions, truth), param = self.shapes, self.param
        for what, shape in (("regions (R, 5) of image, x1, y1, x2, y2", regions), ("true boxes (G, 5)", truth)):
            if len(shape) < 2 or math.prod(shape[1:]) != 5:
                raise self.error(f"expected {what}, got {shape}")
        if param.num_classes < 2 or param.batch_size < 1 or not 0 <= param.fg_fraction <= 1:
            raise self.error("expected num_classes of at least 2, batch_size of at least 1, and fg_fraction in [0, 1]")
        for name in ("bbox_normalize_mean", "bbox_normalize_std", "bbox_inside_weight"):
            if len(getattr(param, name)) not in (0, 4):
                raise self.error(f"expected 4 values of {name}, got {len(getattr(param, name))}")
        if min(param.bbox_normalize_std, default=1) <= 0:
            raise self.error(f"expected bbox_normalize_std above 0, got {list(param.bbox_normalize_std)}")
        offsets = (param.batch_size, 4 * param.num_classes)
        return [(param.batch_size, 5), (param.batch_size,), offsets, offsets, offsets]

    def lower(self, builder: Builder) -> None:
        param = self.param
        inputs = builder.plain_bottoms(self)
        attributes = {
            "classes": param.num_classes,
            "objects": round(param.fg_fraction * param.batch_size),
            "object_overlap": param.fg_thresh,
            "least_overlap": param.bg_thresh_lo,
            "most_overlap": param.bg_thresh_hi,
            "means": list(param.bbox_normalize_mean) or [0.0] * 4,
            "deviations": list(param.bbox_normalize_std) or list(DEVIATIONS),
            "inside_weights": list(param.bbox_inside_weight) or [1.0] * 4,
        }
        builder.op("ProposalTarget", self, inputs, attributes)

    def flops(self) -> int:
        return 10 * self.shapes[0][0] * self.shapes[1][0]
