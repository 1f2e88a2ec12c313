"""Computes the hyperbolic tangent."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("TanH")
class TanH(Activation):
    """Computes tanh x (Caffe's layer). Bottom and top: any shape."""

    bf16 = True
