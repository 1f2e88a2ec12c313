"""Computes SoftmaxWithLoss with weights of labels or samples, as many forks do."""

from __future__ import annotations

import math

from engine.layers.base import Shape
from engine.layers.registry import register
from engine.layers.softmax_with_loss import SoftmaxWithLoss


@register("WeightedSoftmaxWithLoss")
class WeightedSoftmaxWithLoss(SoftmaxWithLoss):
    """Computes what SoftmaxWithLoss does, for labels with weights, as many forks do. Bottoms: scores and labels, as of
    SoftmaxWithLoss, and, if given, a weight for each label or each sample, which multiplies its loss; tops: the loss
    (), and the probabilities. What the sum is divided by counts labels, not weights.

    `softmax_param.pos_mult`, of shicai's fork, is the weight of the labels of class `pos_cid` (1).
    """

    bottom_range = (2, 3)
    constant_bottoms = frozenset({1, 2})
    takes_distributions = False
    own_fields = SoftmaxWithLoss.own_fields | {"pos_mult", "pos_cid"}

    def infer(self) -> list[Shape]:
        tops = super().infer()
        labels, weights = self.shapes[1], self.shapes[2] if len(self.shapes) > 2 else self.shapes[1]
        if math.prod(weights) not in (math.prod(labels), self.samples):
            raise self.error(f"expected a weight for each label of {labels} or each sample, got weights {weights}")
        return tops

    @property
    def samples(self) -> int:
        """The number of samples, which is that of outer."""
        return math.prod(self.shapes[0][: self.axis])

    @property
    def class_weights(self) -> list[float]:
        """The weights of the classes, in their order; empty if there are none. Raises ConfigError if pos_mult and
        pos_cid do not fit."""
        param, classes = self.message.softmax_param, self.shapes[0][self.axis]
        weights = super().class_weights
        if not param.HasField("pos_mult"):
            if param.HasField("pos_cid"):
                raise self.error("pos_cid has no effect without pos_mult; add that or take it out")
            return weights
        if weights:
            raise self.error("expected pos_mult or a weight for each class, got both")
        if not 0 <= param.pos_cid < classes:
            raise self.error(f"expected pos_cid from 0 to {classes - 1}, the last class, got {param.pos_cid}")
        return [param.pos_mult if number == param.pos_cid else 1.0 for number in range(classes)]
