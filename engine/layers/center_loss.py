"""The distance of features from the centers of their classes, which are learned, too (Wen et al. 2016)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Parameter, Shape
from engine.layers.class_loss import ClassLoss
from engine.layers.registry import register


@register("CenterLoss")
class CenterLoss(ClassLoss):
    """Bottoms: features (N, ...), labels (N). Top: sum of (x - center)^2 / 2N, or, `distance_type: "L1"`, of
    |x - center| / N; params: centers (num_output, inner).

    A center's gradient is, whatever loss_weight is, the sum of center - x over the samples of its class, divided by 1
    plus their number: what the paper moves it by. On several ranks, and of micro-batches, it is the mean of each one's
    own: of the few samples that a class has in a batch, as many times smaller.
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
