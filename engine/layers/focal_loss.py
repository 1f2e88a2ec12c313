"""Computes the cross-entropy of a softmax with less weight on samples that are right already
(Lin et al. 2017, arXiv 1708.02002)."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.registry import register
from engine.layers.softmax_loss_base import SoftmaxLossBase


@register("FocalLoss", "SoftmaxFocalLoss", "SoftmaxWithFocalLoss")
class FocalLoss(SoftmaxLossBase):
    """Computes the sum over all (outer, inner) of -alpha (1 - p)^gamma log p or, with `type: ONEADDP`, of
    -(alpha + p)^gamma log p, where p is the softmax's probability of the label, as several forks do. The sum is divided
    as that of SoftmaxWithLoss is.

    Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner). Tops: the loss (), and, if asked
    for, the probabilities.

    The default of alpha is that of the fork that has the type: 1 for FocalLoss, which is happynear's, as ONEADDP is,
    and 0.25 for the others. With another alpha than 1, happynear's has (alpha - p)^gamma where the paper, other forks
    and this layer have alpha (1 - p)^gamma.
    """

    op_type = "FocalLoss"

    @property
    def param(self):
        return self.message.focal_loss_param

    @property
    def alpha(self) -> float:
        """The alpha of the text or, without it, of the fork that has the type."""
        if self.param.HasField("alpha") or self.type == "FocalLoss" or self.param.type == self.param.ONEADDP:
            return self.param.alpha
        return 0.25

    def infer(self) -> list[Shape]:
        if self.param.type == self.param.LINEAR:
            raise self.error("expected type ORIGIN or ONEADDP, got LINEAR, which no fork computes")
        if self.alpha <= 0 or self.param.gamma < 0:
            raise self.error(
                f"expected alpha above 0 and gamma of at least 0, got {self.alpha:g} and {self.param.gamma:g}"
            )
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.param
        return {
            **super().attributes(),
            "alpha": self.alpha,
            "gamma": param.gamma,
            "add": param.type == param.ONEADDP,
        }

    def flops(self) -> int:
        return 5 * math.prod(self.shapes[0])
