"""The loss of the third version of YOLO (Redmon and Farhadi 2018, arXiv 1804.02767), from MobileNet-YOLO's fork."""

from __future__ import annotations

import math

import numpy as np

from engine import proto
from engine.errors import numbers_text
from engine.layers.anchor_grid import GridLoss
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Yolov3")
class Yolov3(GridLoss):
    """Bottoms: predictions, ground truth. Top: the loss ().

    The gradient, divided by N, is that of: for the box of each truth's pixel whose anchor has the closest size of all
    `biases`, if `mask` has it, coord_scale (2 - the truth's area) times the cross-entropies of the sigmoids of x and y
    and half the squares of the differences of log w and log h, and the cross-entropies of object and of each class,
    these times class_scale; for other boxes that overlap no truth by `thresh`, the cross-entropy of no object. With
    use_logic_gradient, half the squares of differences of sigmoids take the place of cross-entropies, and the object's
    counts object_scale times. The top is the sum of the squares of the differences, divided by N, as in the fork.
    `biases` are in pixels of the picture, of which anchors_scale are one of the plane.

    With `iou_loss` IOU or GIOU, iou_normalizer times 1 - the overlap (generalised: Rezatofighi et al. 2019, arXiv
    1902.09630) of a truth and its box takes the place of what is said of x, y, w and h, with the fork's slopes: along
    the sigmoids of x and y as if a pixel, and along exp(w) and exp(h) as if an anchor, had the size of the picture. The
    top is then the sum of the squares of the other differences, and of iou_normalizer times 1 - GIOU.
    """

    @property
    def is_loss(self) -> bool:
        return True

    @property
    def param(self):
        return self.message.yolov3_param

    @property
    def anchors(self) -> int:
        return self.param.num

    @property
    def overlaps(self) -> bool:
        return self.param.iou_loss != proto.Yolov3Parameter.MSE

    def infer(self) -> list[Shape]:
        self.check_grid()
        return [()]

    def check_biases(self) -> None:
        biases, mask = self.param.biases, list(self.param.mask)
        if not biases or len(biases) % 2 or not all(0 < bias < math.inf for bias in biases):
            raise self.error(f"expected biases above 0, a width and a height of each, got {numbers_text(biases)}")
        if self.param.anchors_scale < 1:
            raise self.error("expected anchors_scale above 0, got 0")
        if len(mask) != self.anchors or 2 * max(mask) >= len(biases):
            raise self.error(f"expected {self.anchors} numbers of the {len(biases) // 2} biases as mask, got {mask}")
        if self.overlaps and self.param.use_logic_gradient:
            raise self.error(
                "expected iou_loss: MSE with use_logic_gradient; with another one the fork multiplies the slopes of x "
                "and y by numbers that it has overwritten"
            )

    def grid_attributes(self) -> Attributes:
        sizes = np.reshape(self.param.biases, (-1, 2)) / self.param.anchors_scale
        mask = list(self.param.mask)
        return {
            "classes": self.param.num_class,
            "anchors": sizes[mask].ravel().tolist(),
            "every": sizes.ravel().tolist(),
            "mask": mask,
        }

    def attributes(self) -> Attributes:
        squared = self.param.use_logic_gradient
        attributes = {
            **super().attributes(),
            "squared": squared,
            "focal": self.param.use_focal_loss,
            "overlaps": self.overlaps,
            "enclosed": self.param.iou_loss == proto.Yolov3Parameter.GIOU,
            "overlap_scale": self.param.iou_normalizer,
        }
        return attributes if squared else {**attributes, "object_scale": 1.0}
