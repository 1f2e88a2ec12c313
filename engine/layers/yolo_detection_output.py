"""Decodes the predictions of a YOLO detector into detections, with non-maximum suppression (MobileNet-YOLO's fork)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import numbers_text
from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


class _YoloDetections(Layer):
    """The base of layers that decode YOLO's predictions. Bottoms: predictions (N, num_box * (5 + num_classes), H, W) of
    one plane or several, with x, y, w, h, object and scores of classes for each box; top (1, 1, N * boxes, 7) of image,
    label (from 1), confidence, x1, y1, x2, y2, in fractions of the image's sides, ordered by image and confidence.

    Each box has its best class. If boxes of one image overlap by nms_threshold or more, only the one with the best
    confidence stays, whatever their classes. Unused rows hold -1.
    """

    bottom_range = (1, None)
    differentiable = False
    softmax = False

    @property
    def param(self):
        raise NotImplementedError

    @property
    def anchors(self) -> list[float]:
        """The width and height of each anchor, in pixels of its plane, for one bottom after the other."""
        raise NotImplementedError

    @property
    def least(self) -> float:
        """Only boxes with a confidence above this one count."""
        return self.param.confidence_threshold

    def check_fields(self) -> None:
        """Raises ConfigError if fields that only this type has do not fit."""
        raise NotImplementedError

    def infer(self) -> list[Shape]:
        param, boxes = self.param, 0
        if not param.HasField("num_classes"):
            raise self.error("num_classes is missing")
        if param.num_classes < 1 or param.num_box < 1:
            raise self.error(
                f"expected num_classes and num_box of at least 1, got {param.num_classes} and {param.num_box}"
            )
        if not 0 <= param.nms_threshold <= 1:
            raise self.error(f"expected nms_threshold from 0 to 1, got {param.nms_threshold:g}")
        if len(param.biases) % 2 or not all(0 < bias < math.inf for bias in param.biases):
            raise self.error(f"expected biases above 0, a width and a height of each, got {numbers_text(param.biases)}")
        self.check_fields()
        samples, channels = self.shapes[0][0] if self.shapes[0] else "N", param.num_box * (5 + param.num_classes)
        for shape in self.shapes:
            if len(shape) != 4 or shape[:2] != (samples, channels):
                raise self.error(f"expected predictions ({samples}, {channels}, H, W), got {shape}")
            boxes += param.num_box * shape[2] * shape[3]
        return [(1, 1, self.shapes[0][0] * boxes, 7)]

    def attributes(self) -> Attributes:
        return {
            "classes": self.param.num_classes,
            "anchors": self.anchors,
            "softmax": self.softmax,
            "confidence_threshold": self.least,
            "nms_threshold": _below(self.param.nms_threshold),
        }

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("YoloDetectionOutput", self, inputs, self.attributes())

    def flops(self) -> int:
        return sum(map(math.prod, self.shapes))  # what suppression takes depends on the scores


@register("YoloDetectionOutput")
class YoloDetectionOutput(_YoloDetections):
    """Decodes YOLO v2 (MobileNet-YOLO's layer). Bottoms, top: see _YoloDetections. The probabilities of classes are a
    softmax. A confidence of exactly confidence_threshold counts. `biases` are in pixels of the plane, the same ones for
    each bottom."""

    softmax = True

    @property
    def param(self):
        return self.message.yolo_detection_output_param

    @property
    def anchors(self) -> list[float]:
        return list(self.param.biases) * len(self.shapes)

    @property
    def least(self) -> float:
        return _below(self.param.confidence_threshold)

    def check_fields(self) -> None:
        param = self.param
        if param.coords != 4:
            raise self.error(f"expected coords 4, got {param.coords}")
        if len(param.biases) != 2 * param.num_box:
            raise self.error(f"expected {2 * param.num_box} biases, two for each box, got {numbers_text(param.biases)}")


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(_YoloDetections):
    """Decodes YOLO v3 (MobileNet-YOLO's layer). Bottoms, top: see _YoloDetections. The probabilities of classes are
    sigmoids. `biases` are in pixels of the image; for each bottom `mask` chooses num_box of them, and an anchors_scale
    is the number of pixels of the image for one of the plane."""

    @property
    def param(self):
        return self.message.yolov3_detection_output_param

    @property
    def anchors(self) -> list[float]:
        param = self.param
        scales = np.repeat(np.array(param.anchors_scale, float), param.num_box)
        return (np.reshape(param.biases, (-1, 2))[list(param.mask)] / scales[:, None]).ravel().tolist()

    def check_fields(self) -> None:
        param, planes = self.param, len(self.shapes)
        if param.mask_group_num != planes:
            raise self.error(
                f"expected mask_group_num to be the number of bottoms, {planes}, got {param.mask_group_num}"
            )
        if len(param.anchors_scale) != planes or 0 in param.anchors_scale:
            raise self.error(f"expected an anchors_scale above 0 for each bottom, got {list(param.anchors_scale)}")
        if len(param.mask) != planes * param.num_box:
            raise self.error(
                f"expected {planes * param.num_box} numbers as mask, num_box for each bottom, got {list(param.mask)}"
            )
        if 2 * max(param.mask) >= len(param.biases):
            raise self.error(f"expected numbers of the {len(param.biases) // 2} biases as mask, got {list(param.mask)}")


def _below(x: float) -> float:
    """Returns the next float32 below x that kernels tell from x: what is above it has reached x."""
    below = np.nextafter(np.float32(x), np.float32(-np.inf))
    least = np.finfo(np.float32).tiny  # kernels take what is nearer to 0 for 0
    return float(below) if abs(below) >= least else -float(least)
