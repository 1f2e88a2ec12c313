"""Computes max(x, 0), or negative_slope * x where x is negative."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register


@register("ReLU")
class ReLU(Activation):
    """Computes max(x, 0), or negative_slope * x where x is negative (Caffe's layer). Bottom and top: any shape."""

    bf16 = True

    def attributes(self) -> Attributes:
        return {"negative_slope": self.message.relu_param.negative_slope}
