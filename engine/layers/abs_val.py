"""Computes |x|."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("AbsVal")
class AbsVal(Activation):
    """Computes |x| (Caffe's layer). Bottom and top: any shape. The gradient at 0 is 0."""

    bf16 = True
