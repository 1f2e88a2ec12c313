"""Losses of distances from the centers of classes, such as InnerDistance gives, from happynear's fork."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


class DistanceLoss(LossLayer):
    """Bottoms: distances (N, D), labels (N) and, if given, a weight for the gradient of each sample (N). Tops: the mean
    loss over the samples, and, if given, the mean distances (2) from the own center and from others, or what is lost by
    them."""

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
        """The base's attributes, and those of a param by name."""
        return {**super().attributes(), **{name: getattr(param, name) for name in names}}

    def flops(self) -> int:
        return 3 * math.prod(self.shapes[0])


@register("GeneralTripletLoss")
class GeneralTripletLoss(DistanceLoss):
    """Of a sample: negative_weight times the sum of max(own + margin - other, 0), or its largest term alone with
    `hardest_only`; 0 with `positive_first` where own is above positive_upper_bound.

    The own distance's derivative is positive_weight however many others are too close, and, with `add_center_loss`,
    also where none is.
    """

    def attributes(self) -> Attributes:
        param = self.message.general_triplet_loss_param
        weights = ("positive_upper_bound", "positive_weight", "negative_weight")
        return self.fields(param, "margin", "add_center_loss", "hardest_only", "positive_first", *weights)


@register("GeneralContrastiveLoss")
class GeneralContrastiveLoss(DistanceLoss):
    """Of a sample: positive_weight min(max(own - positive_margin, 0), positive_outlier_thresh), and negative_weight
    times the sum of max(negative_margin - other, 0), or, `exp_negative_weight`, of exp(-other) for those below the
    margin; only the nearest other one counts with `max_negative_only`, none with `positive_first` where own is above
    positive_upper_bound.

    `normalize_negative`: the derivatives of others are divided by their sum over this number and N, where that is
    above positive_weight. An own distance beyond the threshold has none.
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
    """Of a sample: positive_weight min(max(own - positive_margin, 0), t), and the logarithm of the sum of
    exp(negative_weight (negative_margin - other)) over those below the margin; t is positive_outlier_thresh of
    general_contrastive_loss_param. `square`: of both squares, with half their derivatives, the own one by own itself.

    As in happynear's fork, negative_weight is the exponent's scale, and `exponent_scale` is not used.
    """

    def attributes(self) -> Attributes:
        param = self.message.soft_contrastive_loss_param
        names = ("positive_margin", "negative_margin", "positive_weight", "negative_weight", "square")
        outlier = self.message.general_contrastive_loss_param.positive_outlier_thresh
        return {**self.fields(param, *names), "positive_outlier_thresh": outlier}
