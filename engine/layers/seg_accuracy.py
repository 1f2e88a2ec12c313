"""Measures the accuracy of a segmentation, as DeepLab does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("SegAccuracy")
class SegAccuracy(Layer):
    """Measures how well pixels are classified (DeepLab's layer). Bottoms: scores (N, classes, ...), one label for each
    (n, ...); top (1, 1, 1, 3): the fraction of pixels that are right, the mean of that fraction over the classes that
    were seen, and the mean over all classes of intersection over union.

    With `reset: false` it counts all batches since the start together.
    """

    bottom_range = (2, 2)
    differentiable = False
    is_measure = True
    constant_bottoms = frozenset({1})

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def goes_on(self) -> bool:
        """Whether it counts the pixels of the batches before, too."""
        return not self.message.seg_accuracy_param.reset

    def infer(self) -> list[Shape]:
        scores, labels = self.shapes
        if len(scores) < 2:
            raise self.error(f"expected scores of at least 2 axes (N, classes), got {scores}")
        if labels[:1] != scores[:1] or math.prod(labels) != math.prod(scores) // scores[1]:
            raise self.error(f"expected a label for each pixel of {scores}, got labels of shape {labels}")
        if self.message.seg_accuracy_param.top_k != 1:
            raise self.error(f"expected top_k 1, got {self.message.seg_accuracy_param.top_k}")
        return [(1, 1, 1, 3)]

    def attributes(self) -> Attributes:
        param = self.message.seg_accuracy_param
        return {"ignore_labels": list(param.ignore_label), "reset": param.reset}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("SegAccuracy", self, inputs, self.attributes())

    def flops(self) -> int:
        return math.prod(self.shapes[0])  # comparisons
