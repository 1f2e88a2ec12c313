"""Half the mean squared distance of two blobs."""

from __future__ import annotations

from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("EuclideanLoss")
class EuclideanLoss(PairLoss):
    """Bottoms: two blobs (N, ...) of the same count; both may be predictions. Top: sum (a - b)^2 / 2N."""
