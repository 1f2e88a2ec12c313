"""Computes a softmax and the negative log-likelihood of labels in one layer."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.labels import are_distributions
from engine.layers.registry import register
from engine.layers.softmax_loss_base import SoftmaxLossBase


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(SoftmaxLossBase):
    """Computes the sum of -log p of the labels' classes, where p are the probabilities, divided as loss_param says
    (Caffe's layer). Bottoms: scores (outer..., classes, inner...), and one label for each (outer, inner), or, of the
    same count as the scores, a distribution over the classes for each, as mix_param makes them; tops: the loss (), and
    the probabilities.

    `softmax_param.axis` is the axis of the classes. With `label_smoothing` e, a label stands for the distribution that
    gives e / classes to every class and the rest to the label's own (Szegedy et al. 2016). SegNet's `class_weighting`
    (with `weight_by_label_freqs: true`) and happynear's `softmax_param.class_weight` have a number for each class, by
    which they multiply the loss of its labels; what the sum is divided by does not change.
    """

    op_type = "SoftmaxWithLoss"
    takes_distributions = True
    own_fields = frozenset({"label_smoothing", "weight_by_label_freqs", "class_weighting", "class_weight"})

    def infer(self) -> list[Shape]:
        tops = super().infer()
        if not 0 <= self.message.loss_param.label_smoothing < 1:
            raise self.error(f"expected label_smoothing in [0, 1), got {self.message.loss_param.label_smoothing:g}")
        self._check_weights()
        by_class = self.class_weights or self.ignored_label is not None
        if by_class and are_distributions(self, self.axis):
            raise self.error("labels that are distributions have no class to ignore or to weigh: take out ignore_label")
        return tops

    @property
    def class_weights(self) -> list[float]:
        """The weights of the classes, in their order; empty if there are none."""
        loss, softmax = self.message.loss_param, self.message.softmax_param
        return list(loss.class_weighting) if loss.weight_by_label_freqs else list(softmax.class_weight)

    def _check_weights(self) -> None:
        weights, classes = self.class_weights, self.shapes[0][self.axis]
        param = self.message.loss_param
        if param.weight_by_label_freqs and not weights:
            raise self.error("weight_by_label_freqs needs class_weighting, a weight for each class")
        if param.class_weighting and not param.HasField("weight_by_label_freqs"):
            raise self.error("class_weighting needs weight_by_label_freqs: true; add that or take it out")
        if param.weight_by_label_freqs and self.message.softmax_param.class_weight:
            raise self.error("expected class_weighting or class_weight, got both: take one out")
        if weights and len(weights) != classes:
            raise self.error(f"expected a weight for each of {classes} classes, got {len(weights)}")
        if any(weight < 0 for weight in weights):
            raise self.error(f"expected weights of classes of 0 or more, got {min(weights):g}")

    def attributes(self) -> Attributes:
        attributes = {**super().attributes(), "label_smoothing": self.message.loss_param.label_smoothing}
        if are_distributions(self, self.axis):
            attributes["distributions"] = True
        return {**attributes, "class_weights": self.class_weights} if self.class_weights else attributes

    def flops(self) -> int:
        return 4 * math.prod(self.shapes[0]) + 2 * math.prod(self.shapes[1])
