"""Computes losses of distances from the centers of classes, such as those of InnerDistance (happynear's fork)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


class DistanceLoss(LossLayer):
    """The base of these losses. `own` is a sample's distance from the center of its own class, `other` that from
    another center.

    Bottoms: distances (N, D), labels (N) and, if given, a weight for the gradient of each sample (N). Tops: the mean
    loss over the samples (), and, if asked for, the means (2) of own and of other or, in losses with two margins, of
    how far they are on the wrong side of their margins.
    """

    bottom_range = (2, 3)
    top_range = (0, 2)
    constant_bottoms = frozenset({1, 2})

    def infer(self) -> list[Shape]:
        super().infer()
        distances = self.shapes[0]
        if len(distances) < 2 or any(math.prod(shape) != distances[0] for shape in self.shapes[1:]):
            raise self.error(f"expected distances (N, D) and N labels (and weights), got {self.shapes}")
        return [(), (2,)][: max(1, len(self.message.top))]

    def fields(self, param, *names: str) -> Attributes:
        """Returns the base's attributes and these fields of a param."""
        return {**super().attributes(), **{name: getattr(param, name) for name in names}}

    def flops(self) -> int:
        return 3 * math.prod(self.shapes[0])


@register("GeneralTripletLoss")
class GeneralTripletLoss(DistanceLoss):
    """Computes, for a sample, negative_weight times the sum over the other centers of max(own + margin - other, 0)
    (happynear's layer). With `hardest_only` only the largest term counts. With `positive_first` the loss is 0 if own is
    above positive_upper_bound.

    The derivative by own is positive_weight however many others are too close. With `add_center_loss`, and if own is
    above the bound of `positive_first`, it is so also if none is.
    """

    def attributes(self) -> Attributes:
        param = self.message.general_triplet_loss_param
        weights = ("positive_upper_bound", "positive_weight", "negative_weight")
        return self.fields(param, "margin", "add_center_loss", "hardest_only", "positive_first", *weights)


@register("GeneralContrastiveLoss")
class GeneralContrastiveLoss(DistanceLoss):
    """Computes, for a sample, positive_weight min(max(own - positive_margin, 0), positive_outlier_thresh), and
    negative_weight times the sum over the other centers of max(negative_margin - other, 0) or, with
    `exp_negative_weight`, of exp(-other) for those below the margin (happynear's layer).

    With `max_negative_only` only the nearest other center counts. With `positive_first` no other counts if own is above
    positive_upper_bound. Otherwise own has no derivative if it is above positive_outlier_thresh. With
    `normalize_negative` n, let s be the sum of the derivatives by others, divided by n N: if s is above
    positive_weight, these derivatives are divided by s.
    """

    bottom_range = (2, 2)

    @property
    def param(self):
        return self.message.general_contrastive_loss_param

    def infer(self) -> list[Shape]:
        for name in ("add_intra_mae", "max_positive_only"):
            if getattr(self.param, name):
                raise self.error(f"expected no {name}, which happynear's fork has and this engine does not")
        if self.param.HasField("normalize_negative") and self.param.normalize_negative <= 0:
            raise self.error(f"expected normalize_negative above 0, got {self.param.normalize_negative:g}")
        return super().infer()

    def attributes(self) -> Attributes:
        margins = ("positive_margin", "negative_margin", "positive_outlier_thresh", "positive_upper_bound")
        weights = ("positive_weight", "negative_weight", "normalize_negative", "exp_negative_weight")
        return self.fields(self.param, *margins, *weights, "max_negative_only", "positive_first")


@register("SoftContrastiveLoss")
class SoftContrastiveLoss(DistanceLoss):
    """Computes, for a sample, positive_weight min(max(own - positive_margin, 0), t), and the logarithm of the sum of
    exp(negative_weight (negative_margin - other)) over the other centers below the margin (happynear's layer). t is
    `positive_outlier_thresh` of general_contrastive_loss_param.

    With `square` the excesses over the margins are squared. Derivatives are then half of the formula's, and the one by
    own has own itself in place of own - positive_margin. As in the fork, negative_weight is the scale of the exponent,
    and `exponent_scale` is not read. Weights of samples count relative to their mean.
    """

    def attributes(self) -> Attributes:
        param = self.message.soft_contrastive_loss_param
        names = ("positive_margin", "negative_margin", "positive_weight", "negative_weight", "square")
        outlier = self.message.general_contrastive_loss_param.positive_outlier_thresh
        return {**self.fields(param, *names), "positive_outlier_thresh": outlier}
