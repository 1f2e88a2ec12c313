"""Computes log(1 + exp(x)), the binomial normal log likelihood."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("BNLL")
class BNLL(Activation):
    """Computes log(1 + exp(x)) (Caffe's layer). Bottom and top: any shape."""

    bf16 = True
