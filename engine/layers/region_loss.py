"""Computes the loss of YOLO's second version."""

from __future__ import annotations

from engine.layers.anchor_grid import GridLoss
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("RegionLoss")
class RegionLoss(GridLoss):
    """The loss of YOLO v2, as Intel's fork has it. Bottoms: predictions and ground truth (see AnchorGrid and GridLoss);
    top: the loss ().

    The gradient is that of a sum over boxes, divided by N. To each truth belongs a box: at the pixel that holds its
    center, the one whose anchor, or with `bias_match: 0` whose predicted size, fits best. The box adds
    - coord_scale times the smooth L1 distances of x, y, log w and log h,
    - object_scale (1 - p)^4 / 2, where p is its probability of an object,
    - class_scale times the negative log-likelihood of the truth's class.

    Each other box that overlaps no truth by more than `thresh` adds noobject_scale p^2 / 2. The top is another number,
    the one that Caffe's YOLO shows: the sum of the squares of the gradient before it is divided.
    """

    @property
    def param(self):
        return self.message.region_loss_param

    @property
    def anchors(self) -> int:
        return self.param.num

    def infer(self) -> list[Shape]:
        self.check_grid()
        for field in ("softmax_tree", "class_map"):
            if getattr(self.param, field):
                raise self.error(f"expected no {field}, which is not supported")
        if self.param.coords != 4:
            raise self.error(f"expected coords 4, got {self.param.coords}")
        return [()]

    def attributes(self) -> Attributes:
        return {
            **super().attributes(),
            "bias_match": bool(self.param.bias_match),
            "noobject_scale": self.param.noobject_scale,
        }
