"""The base of losses that begin with a softmax and take one label for each position."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.labels import are_distributions, axis_of_classes, check_labels
from engine.layers.loss import VALID, LossLayer


class SoftmaxLossBase(LossLayer):
    """Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner); tops: the loss (), and the
    probabilities, of the shape of the scores."""

    top_range = (0, 2)
    probabilities = "Softmax"
    takes_distributions = False
    default_normalization = VALID

    @property
    def asked_axis(self) -> int:
        return self.message.softmax_param.axis

    @property
    def axis(self) -> int:
        """The axis of the classes."""
        return axis_of_classes(self, self.asked_axis)

    def infer(self) -> list[Shape]:
        super().infer()
        if not (self.takes_distributions and are_distributions(self, self.axis)):
            check_labels(self, self.axis)
        return [(), self.shapes[0]][: max(1, len(self.message.top))]

    def attributes(self) -> Attributes:
        scores = self.shapes[0]
        outer, inner = math.prod(scores[: self.axis]), math.prod(scores[self.axis + 1 :])
        return {
            **super().attributes(),
            **self.normalization_attributes(self.default_normalization, outer, inner),
            "axis": self.axis,
        }
