"""Computes 1 minus the Dice overlap of probabilities and truth, for segmentations that are mostly background."""

from __future__ import annotations

import math

from engine.layers.base import Attributes, Shape
from engine.layers.loss import LossLayer
from engine.layers.registry import register


@register("DiceLoss")
class DiceLoss(LossLayer):
    """Computes the mean over the samples of 1 - (2 sum p g + e) / (sum p^2 + sum g^2 + e), with e = 1e-5, as V-Net does
    (arXiv 1606.04797).

    Bottoms: probabilities p (N, C, ...); as many targets g, or one label for each position (N, ...). Top: the loss ().

    Of labels, g is 1 where the label is the class, and else 0. Sums are then over a class, and the mean is also over
    the classes from 1 on: class 0, the background, does not count.
    """

    @property
    def has_labels(self) -> bool:
        """Whether the second bottom holds labels, not targets."""
        return math.prod(self.shapes[1]) != math.prod(self.shapes[0])

    def infer(self) -> list[Shape]:
        super().infer()
        probabilities, truth = self.shapes
        if len(probabilities) < 2:
            raise self.error(f"expected probabilities of at least 2 axes (N, C), got {probabilities}")
        if self.has_labels and math.prod(truth) != math.prod(probabilities) // probabilities[1]:
            raise self.error(f"expected as many targets as {probabilities}, or a label for each position, got {truth}")
        return [()]

    def attributes(self) -> Attributes:
        return {**super().attributes(), "labels": self.has_labels}

    def flops(self) -> int:
        return 5 * math.prod(self.shapes[0])
