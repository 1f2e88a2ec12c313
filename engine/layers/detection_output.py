"""Decodes a detector's predictions into detections, with non-maximum suppression (SSD)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Shape
from engine.layers.prior_predictions import PriorPredictions
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("DetectionOutput")
class DetectionOutput(PriorPredictions):
    """Decodes boxes from predictions, and keeps the best (SSD's layer).

    Bottoms: locations, confidences (probabilities), priors, as PriorPredictions has them; a fourth, the images, is not
    read. Top: (1, 1, rows, 7) of image, label, confidence, x1, y1, x2, y2, ordered by image, label and confidence.

    Of every class the `nms_param.top_k` best boxes above `confidence_threshold` are kept unless a better one covers
    them, and then of every image the `keep_top_k` best. SSD's top has as many rows as there are detections. Here it has
    room for the most that there can be, usually N keep_top_k, and unused rows hold -1. Nothing is saved or shown:
    `visualize` has no effect, and `save_output_param` has one on `engine test --report` only.
    """

    bottom_range = (3, 4)
    differentiable = False
    constant_bottoms = frozenset({0, 1, 2, 3})

    @property
    def param(self):
        return self.message.detection_output_param

    @property
    def top_k(self) -> int:
        """How many boxes of a class are compared, the best ones; -1: all."""
        nms = self.param.nms_param
        return nms.top_k if nms.HasField("top_k") else -1

    def infer(self) -> list[Shape]:
        self.check_predictions()
        if self.param.nms_param.nms_threshold < 0:
            raise self.error(f"expected nms_threshold of at least 0, got {self.param.nms_param.nms_threshold:g}")
        classes = [c for c in range(self.param.num_classes) if c != self.param.background_label_id]
        rows = len(classes) * min(self.priors, self.top_k if self.top_k >= 0 else self.priors)
        if self.param.keep_top_k >= 0:
            rows = min(rows, self.param.keep_top_k)
        if rows < 1:
            raise self.error("expected keep_top_k, top_k and classes that leave room for a detection")
        return [(1, 1, self.shapes[0][0] * rows, 7)]

    def attributes(self) -> Attributes:
        param = self.param
        attributes = {
            **self.prediction_attributes(),
            "variance_in_target": param.variance_encoded_in_target,
            "nms_threshold": param.nms_param.nms_threshold,
            "eta": param.nms_param.eta,
            "top_k": self.top_k,
            "keep_top_k": param.keep_top_k,
        }
        if param.HasField("confidence_threshold"):
            attributes["confidence_threshold"] = param.confidence_threshold
        return attributes

    def lower(self, builder: Builder) -> None:
        inputs = [builder.plain(self, builder.tensor(blob)) for blob in self.bottoms[:3]]
        builder.op("DetectionOutput", self, inputs, self.attributes())

    def flops(self) -> int:
        return 20 * math.prod(self.shapes[0][:1]) * self.priors  # decoding; suppression depends on the scores
