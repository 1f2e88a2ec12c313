"""Computes the fraction of sequences of labels that are found without a mistake, as CRNN's forks do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("LabelsequenceAccuracy")
class SequenceAccuracy(Layer):
    """Compares sequences with the best class of each step (the layer of CRNN's forks). Bottoms: scores (N, T, C),
    labels (N, L), of which those that are `blank_label` do not count; top (): the fraction of the samples whose best
    classes are the labels, after repetitions, and then blanks, are left out."""

    bottom_range = (2, 2)
    differentiable = False
    is_measure = True
    constant_bottoms = frozenset({1})
    axis = 2

    def infer(self) -> list[Shape]:
        scores, labels = self.shapes
        if len(scores) < 3 or math.prod(scores[3:]) != 1:
            raise self.error(f"expected scores (N, T, C), of samples, steps of time and classes, got {scores}")
        if labels[:1] != scores[:1]:
            raise self.error(f"expected labels ({scores[0]}, L), got {labels}")
        return [()]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        blank = self.message.labelsequence_accuracy_param.blank_label
        builder.op("SequenceAccuracy", self, inputs, {"blank": blank})

    def flops(self) -> int:
        return math.prod(self.shapes[0])  # comparisons
