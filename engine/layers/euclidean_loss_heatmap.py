"""Computes the squared distance of heat maps, as Caffe-Heatmap trains poses (Pfister et al. 2015, arXiv 1506.02897)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from engine.layers.base import Attributes, Shape
from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("EuclideanLossHeatmap")
class EuclideanLossHeatmap(PairLoss):
    """Computes the mean of (a - b)^2 over all elements (Caffe-Heatmap's layer).

    Bottoms: predictions a (N, C, H, W), heat maps b of the same shape, and, if given, pictures (N, ...), which the fork
    shows in a window and nothing reads here. Top: the loss ().

    As in the fork the gradient is a - b, whatever `loss_weight` is: that of half the sum over a batch, not of the mean.
    """

    bottom_range = (2, 3)
    constant_bottoms = frozenset({1, 2})
    shape_bottoms = frozenset({2})
    sums_batch: ClassVar[bool] = True

    @property
    def is_loss(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        predictions, maps = self.shapes[:2]
        if len(predictions) != 4 or maps != predictions:
            raise self.error(f"expected predictions (N, C, H, W) and heat maps as large, got {predictions} and {maps}")
        if len(self.shapes) > 2 and math.prod(self.shapes[2]) <= predictions[0]:
            raise self.error(
                f"expected pictures as its third bottom, got {self.shapes[2]}: types of rooms, as in RoomNet's fork, "
                "are not supported"
            )
        self.refuse_loss_param()
        return super().infer()

    def lower(self, builder: Builder) -> None:
        predictions, maps = (builder.plain(self, builder.tensor(blob)) for blob in self.bottoms[:2])
        shown: Attributes = {"normalizer": math.prod(self.shapes[0]) / 2, "loss_weight": 0.0}
        builder.op("EuclideanLoss", self, [predictions.without_diff(), maps], shown)
        if self.loss_weights[0] and predictions.diff is not None:  # of half the sum of squares, the gradient is a - b
            half: Attributes = {"normalizer": 1.0, "loss_weight": 1.0}
            builder.op("EuclideanLoss", self, [predictions, maps], half, tops=[], shapes=[()], gradients=[False])
