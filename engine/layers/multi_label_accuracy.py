"""Measures how well scores tell labels that are positive, negative or unknown, as in forks of Caffe's first years."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("MultiLabelAccuracy")
class MultiLabelAccuracy(Layer):
    """Compares the signs of scores with those of labels, as many forks do. Bottoms: scores (N, labels, ...) and labels,
    of one count, as those of MultiLabelLoss; top (1, 5, 1, 1): recall, specificity, the harmonic mean of both,
    precision, and F1. A measure is 0 if there is no label to measure it by."""

    bottom_range = (2, 2)
    differentiable = False
    is_measure = True
    probabilities = "Sigmoid"
    signed_labels = True
    constant_bottoms = frozenset({1})

    @property
    def takes_rows(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        if math.prod(self.shapes[0]) != math.prod(self.shapes[1]):
            raise self.error(f"expected as many labels as scores, {self.shapes[0]}, got {self.shapes[1]}")
        return [(1, 5, 1, 1)]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("MultiLabelAccuracy", self, inputs)

    def flops(self) -> int:
        return 2 * math.prod(self.shapes[0])
