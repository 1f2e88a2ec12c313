"""Computes |x|."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("AbsVal")
class AbsVal(Activation):
    """Caffe's AbsVal computes |x| of every element. Bottom and top: any shape, the same. The gradient at 0 is 0."""

    bf16 = True
