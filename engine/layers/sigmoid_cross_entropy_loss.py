"""Computes the cross-entropy between the sigmoid of scores and targets in [0, 1]."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import BATCH_SIZE, LossLayer
from engine.layers.registry import register


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    """Compares the sigmoids of scores with targets in [0, 1] (Caffe's layer). Bottoms: scores (N, labels, ...),
    targets, of the same count; top: the loss ().

    A score with sigmoid s and target t adds -p t log s - n (1 - t) log(1 - s), where p and n are the label's
    `loss_param.positive_weight` and `negative_weight`, or 1 (Rajpurkar et al. 2017, arXiv 1711.05225, section 2.1). If
    the sum is divided by the number of targets, their weights do not count.
    """

    probabilities = "Sigmoid"
    own_fields = frozenset({"positive_weight", "negative_weight"})

    def infer(self) -> list[Shape]:
        super().infer()
        scores, targets = self.shapes
        if math.prod(scores) != math.prod(targets):
            raise self.error(f"expected as many targets as scores, {scores}, got {targets}")
        self._label_weights("positive_weight")
        self._label_weights("negative_weight")
        return [()]

    def _label_weights(self, field: str) -> list[float]:
        """Returns the weights in a field of loss_param, one for each label. Raises ConfigError if their number does not
        fit, or if one is below 0."""
        given = list(getattr(self.message.loss_param, field))
        labels = math.prod(self.shapes[0][1:2])
        if len(given) not in (0, 1, labels):
            raise self.error(f"expected a {field} for all labels or one for each of {labels}, got {len(given)}")
        if any(weight < 0 for weight in given):
            raise self.error(f"expected each {field} to be 0 or more, got {min(given):g}")
        return given * labels if len(given) == 1 else given or [1.0] * labels

    def attributes(self) -> Attributes:
        scores, param = self.shapes[0], self.message.loss_param
        attributes: Attributes = {
            **super().attributes(),
            **self.normalization_attributes(BATCH_SIZE, scores[0], math.prod(scores[1:])),
        }
        if param.positive_weight or param.negative_weight:
            attributes["positive_weights"] = self._label_weights("positive_weight")
            attributes["negative_weights"] = self._label_weights("negative_weight")
        return attributes

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
