"""Computes x / (1 + exp(-beta x)) (Ramachandran et al. 2017, arXiv 1710.05941)."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register


@register("Swish")
class Swish(Activation):
    """Computes x / (1 + exp(-beta x)) (Caffe's layer). Bottom and top: any shape."""

    bf16 = True

    def attributes(self) -> Attributes:
        return {"beta": self.message.swish_param.beta}
