"""Computes 1 / (1 + exp(-x))."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("Sigmoid")
class Sigmoid(Activation):
    """Computes 1 / (1 + exp(-x)) (Caffe's layer). Bottom and top: any shape."""

    bf16 = True
