"""Marks each detection as right or wrong, for the mean average precision of a test (SSD)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """Compares detections with the true boxes (SSD's layer).

    Bottoms: detections (1, 1, K, 7), as DetectionOutput makes them; ground truth (1, 1, M, 8) of image, label,
    instance, x1, y1, x2, y2, difficult, where rows of image -1 are padding. Top: (1, 1, classes + K, 5).

    The top has a row (-1, label, how many boxes it has, -1, -1) for every class but the background, then a row
    (image, label, confidence, right, wrong) for every detection, then rows of -1.

    A detection is right if it overlaps a box of its label by `overlap_threshold` and no better one has claimed that
    box. Without `evaluate_difficult_gt` a detection of a difficult box is neither right nor wrong. Boxes are compared
    in shares of the image's size: name_size_file and resize_param, by which SSD gets pixels, are not read.
    """

    bottom_range = (2, 2)
    differentiable = False
    is_measure = True
    constant_bottoms = frozenset({0, 1})

    @property
    def param(self):
        return self.message.detection_evaluate_param

    def infer(self) -> list[Shape]:
        detections, truth = self.shapes
        if len(detections) != 4 or detections[3] != 7:
            raise self.error(f"expected detections (1, 1, K, 7), got {detections}")
        if len(truth) != 4 or truth[3] != 8:
            raise self.error(f"expected ground truth (1, 1, M, 8), got {truth}")
        if self.param.num_classes < 1:
            raise self.error("num_classes is missing")
        if self.param.overlap_threshold <= 0:
            raise self.error(f"expected overlap_threshold above 0, got {self.param.overlap_threshold:g}")
        has_background = 0 <= self.param.background_label_id < self.param.num_classes
        classes = self.param.num_classes - has_background
        return [(1, 1, classes + detections[2], 5)]

    def attributes(self) -> Attributes:
        return {
            "classes": self.param.num_classes,
            "background": self.param.background_label_id,
            "overlap_threshold": self.param.overlap_threshold,
            "evaluate_difficult": self.param.evaluate_difficult_gt,
        }

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("DetectionEvaluate", self, inputs, self.attributes())
