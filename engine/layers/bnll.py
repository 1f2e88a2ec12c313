"""Computes log(1 + exp(x)), the binomial normal log likelihood."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("BNLL")
class BNLL(Activation):
    """Caffe's BNLL computes log(1 + exp(x)). Bottom and top: any shape, the same."""

    bf16 = True
