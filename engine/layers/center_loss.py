"""Computes the distance of features from the centers of their classes, which are learned (Wen et al. 2016)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Parameter, Shape
from engine.layers.class_loss import ClassLoss
from engine.layers.registry import register


@register("CenterLoss")
class CenterLoss(ClassLoss):
    """Computes the sum of (x - center)^2 / 2N or, with `distance_type: "L1"`, of |x - center| / N, as caffe-face and
    happynear's fork do.

    Bottoms: features x (N, ...), labels (N). Top: the loss (); params: centers (num_output, inner).

    The gradient of a center does not depend on loss_weight. It is the sum of center - x over the samples of its class,
    divided by 1 plus their number, as the paper moves centers. Over several ranks or micro-batches it is the mean of
    what each of them computes by itself, and so the smaller the fewer of them have samples of the class.
    """

    @property
    def param(self):
        return self.message.center_loss_param

    def infer(self) -> list[Shape]:
        tops = super().infer()
        if self.param.num_output == 0:
            raise self.error("expected num_output above 0, got 0")
        if self.param.distance_type not in ("L1", "L2"):
            raise self.error(f"expected distance_type L1 or L2, got '{self.param.distance_type}'")
        if self.canonical_axis(self.param.axis, len(self.shapes[0])) != 1:
            raise self.error(f"expected axis 1, the only one supported, got {self.param.axis}")
        return tops

    def make_params(self) -> list[Parameter]:
        shape = (self.param.num_output, math.prod(self.shapes[0][1:]))
        return [Parameter(shape, self.param.center_filler)]

    def attributes(self) -> Attributes:
        return {**super().attributes(), "l1": self.param.distance_type == "L1"}
