"""Computes half the mean squared distance of two blobs."""

from __future__ import annotations

from engine.layers.pair_loss import PairLoss
from engine.layers.registry import register


@register("EuclideanLoss")
class EuclideanLoss(PairLoss):
    """Computes sum (a - b)^2 / 2N (Caffe's layer). Bottoms: a and b (N, ...), of the same count; both may be
    predictions. Top: the loss ()."""
