"""Computes the entropy of a softmax, for samples without labels: it is small if any one class is certain."""

from __future__ import annotations

import math
from typing import ClassVar

from engine.layers.base import Attributes, Shape
from engine.layers.labels import axis_of_classes
from engine.layers.loss import LABELS_THAT_COUNT, VALID, LossLayer
from engine.layers.registry import register


@register("EntropyLoss")
class EntropyLoss(LossLayer):
    """Computes the sum over all (outer, inner) of -(sum of p log p over the classes), where p is the softmax of the
    scores, as several forks do. The sum is divided by their number, or as loss_param says.

    Bottom: scores (outer..., classes, inner...), with the classes along `softmax_param.axis`. Tops: the loss (), and,
    if asked for, p. A negative `loss_weight` asks for a large entropy.
    """

    bottom_range = (1, 1)
    top_range = (0, 2)
    constant_bottoms: ClassVar[frozenset[int]] = frozenset()

    @property
    def axis(self) -> int:
        """The axis of the classes."""
        return axis_of_classes(self, self.message.softmax_param.axis)

    def infer(self) -> list[Shape]:
        if self.ignored_label is not None:
            raise self.error("expected no ignore_label: there are no labels")
        axis_of_classes(self, self.message.softmax_param.axis)
        return [(), self.shapes[0]][: max(1, len(self.message.top))]

    def attributes(self) -> Attributes:
        scores, axis = self.shapes[0], self.axis
        outer, inner = math.prod(scores[:axis]), math.prod(scores[axis + 1 :])
        normalizer = self.normalizer(VALID, outer, inner)
        if normalizer == LABELS_THAT_COUNT:
            normalizer = float(outer * inner)
        return {**super().attributes(), "normalizer": normalizer, "axis": axis}

    def flops(self) -> int:
        return 7 * math.prod(self.shapes[0])
