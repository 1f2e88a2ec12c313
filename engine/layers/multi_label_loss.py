"""Computes the cross-entropy of sigmoids with positive, negative or unknown labels, as early forks of Caffe do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Shape
from engine.layers.loss import BATCH_SIZE, LossLayer
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("MultiLabelLoss")
class MultiLabelLoss(LossLayer):
    """Computes the sum of -log s for positive labels and of -log(1 - s) for negative ones, divided by N, where s is the
    sigmoid of the score, as many forks do. Bottoms: scores (N, labels, ...) and labels, of one count: above 0 for
    positive, below 0 for negative, 0 for those that do not count; tops: the loss (), and the sigmoids."""

    top_range = (0, 2)
    probabilities = "Sigmoid"
    signed_labels = True

    def infer(self) -> list[Shape]:
        super().infer()
        if math.prod(self.shapes[0]) != math.prod(self.shapes[1]):
            raise self.error(f"expected as many labels as scores, {self.shapes[0]}, got {self.shapes[1]}")
        if self.ignored_label is not None:
            raise self.error("expected no ignore_label: labels that are 0 do not count")
        return [(), self.shapes[0]][: max(1, len(self.message.top))]

    def attributes(self) -> Attributes:
        scores = self.shapes[0]
        normalizer = self.normalizer(BATCH_SIZE, scores[0], math.prod(scores[1:]))
        return {**super().attributes(), "normalizer": normalizer, "signs": True}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("SigmoidCrossEntropyLoss", self, inputs, self.attributes(), tops=self.tops[:1])
        if len(self.tops) > 1:
            builder.op("Sigmoid", self, [inputs[0].without_diff()], tops=self.tops[1:], gradients=[False])

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
