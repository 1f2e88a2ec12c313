"""The loss of a YOLO detector."""

from __future__ import annotations

from engine.layers.anchor_grid import GridLoss
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("RegionLoss")
class RegionLoss(GridLoss):
    """Bottoms: predictions, ground truth. Top: the loss ().

    The gradient, divided by N, is that of: for the box of each truth's pixel whose anchor fits best, coord_scale times
    the rounded absolute difference of its place, object_scale (1 - p)^4 / 2 and class_scale times the negative
    log-likelihood of its class; for other boxes that overlap no truth by `thresh`, noobject_scale p^2 / 2. The top is
    the sum of the squares of that gradient before the division, the number that Caffe's YOLO shows.
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
