"""Computes the fraction of samples whose label is among the `top_k` highest scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.labels import are_distributions, axis_of_classes, check_labels
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Accuracy")
class Accuracy(Layer):
    """Computes the fraction of labels that are right (Caffe's layer). A label is right if fewer than `top_k` other
    classes score as much as its own class or more.

    Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner). Tops: the accuracy (), and, if
    asked for, the accuracy of every class (classes).

    Labels may be distributions, as `mix_param` makes them, with as many values as the scores: the class of the largest
    weight then counts as the label. With happynear's `min_is_better`, for distances, a label is right if fewer than
    top_k other classes have as little as its own or less.
    """

    bottom_range = (2, 2)
    top_range = (1, 2)
    differentiable = False
    probabilities = "Softmax"
    is_measure = True
    constant_bottoms = frozenset({1})

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def asked_axis(self) -> int:
        return self.message.accuracy_param.axis

    @property
    def axis(self) -> int:
        return axis_of_classes(self, self.asked_axis)

    @property
    def smallest_is_best(self) -> bool:
        return self.message.accuracy_param.min_is_better

    @property
    def ignored_label(self) -> int | None:
        param = self.message.accuracy_param
        return param.ignore_label if param.HasField("ignore_label") else None

    def infer(self) -> list[Shape]:
        if not are_distributions(self, self.axis):
            check_labels(self, self.axis)
        classes = self.shapes[0][self.axis]
        top_k = self.message.accuracy_param.top_k
        if not 1 <= top_k <= classes:
            raise self.error(f"expected top_k from 1 to {classes}, the number of classes, got {top_k}")
        return [(), (classes,)][: len(self.message.top)]

    def attributes(self) -> Attributes:
        attributes: Attributes = {"axis": self.axis, "top_k": self.message.accuracy_param.top_k}
        if self.ignored_label is not None:
            attributes["ignore_label"] = self.ignored_label
        return attributes

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        if self.smallest_is_best:
            negated = {"power": 1.0, "scale": -1.0, "shift": 0.0}
            inputs[0] = builder.op("Power", self, inputs[:1], negated, tops=[], shapes=[self.shapes[0]])[0]
        if are_distributions(self, self.axis):
            scores, axis = self.shapes[0], self.axis
            largest = {"axis": axis, "top_k": 1, "values": False, "pairs": False}
            shape = (*scores[:axis], 1, *scores[axis + 1 :])
            weights = builder.view(self, inputs[1], scores)
            inputs[1] = builder.op("ArgMax", self, [weights], largest, tops=[], shapes=[shape])[0]
        builder.op("Accuracy", self, inputs, self.attributes())

    def flops(self) -> int:
        return math.prod(self.shapes[0])  # comparisons
