"""Computes the loss of YOLO's third version (Redmon and Farhadi 2018, arXiv 1804.02767), as MobileNet-YOLO does."""

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
    """The loss of YOLO v3, as MobileNet-YOLO's fork has it. Bottoms: predictions and ground truth
    (see AnchorGrid and GridLoss); top: the loss (). `biases` are in pixels of the image, of which one pixel of the
    plane has anchors_scale along each side.

    The gradient is that of a sum over boxes, divided by N. To a truth belongs, at the pixel that holds its center, the
    box whose anchor has the closest size of all `biases`, if `mask` has that anchor. The box adds
    - coord_scale (2 - the truth's area) times the sum of the cross-entropies of the sigmoids of x and y, and of half
      the squares of the differences of log w and log h,
    - the cross-entropy of an object,
    - class_scale times the cross-entropies of the classes; with `use_focal_loss` also times
      -(1 - p) (2 p log p + p - 1) / 2, where p is the probability of the truth's class.

    Each other box that overlaps no truth by more than `thresh` adds the cross-entropy of no object. With
    use_logic_gradient, half the squares of the differences of sigmoids take the place of cross-entropies, and the
    object's is multiplied by object_scale. The top is another number, as in the fork: the sum of the squares of the
    differences, divided by N.

    With `iou_loss` IOU or GIOU, iou_normalizer times 1 - the overlap of the truth and its box (GIOU: generalised,
    Rezatofighi et al. 2019, arXiv 1902.09630) takes the place of the terms of x, y, w and h. It has the fork's slopes:
    those along the sigmoids of x and y as if a pixel, and those along exp(w) and exp(h) as if an anchor, were as large
    as the image. To the squares of the other differences the top then adds iou_normalizer times 1 - GIOU.
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
