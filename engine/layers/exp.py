"""Computes base^(shift + scale x)."""

from __future__ import annotations

import math

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Exp")
class Exp(Activation):
    """Computes `base`^(`shift` + `scale` x) (Caffe's layer). A base of -1, the default, stands for e. Bottom and top:
    any shape."""

    def infer(self) -> list[Shape]:
        base = self.message.exp_param.base
        if base != -1 and not base > 0:
            raise self.error(f"expected base above 0, or -1 for e, got {base:g}")
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.message.exp_param
        log_base = 1.0 if param.base == -1 else math.log(param.base)
        return {"rate": log_base * param.scale, "factor": math.exp(log_base * param.shift)}
