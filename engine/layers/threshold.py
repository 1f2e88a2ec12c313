"""Computes 1 where x exceeds the threshold, 0 elsewhere."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register


@register("Threshold")
class Threshold(Activation):
    """Computes 1 where x exceeds `threshold`, 0 elsewhere (Caffe's layer). Bottom and top: any shape. There is no
    gradient."""

    differentiable = False

    def attributes(self) -> Attributes:
        return {"threshold": self.message.threshold_param.threshold}
