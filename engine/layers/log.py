"""Computes the logarithm of shift + scale x."""

from __future__ import annotations

import math

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Log")
class Log(Activation):
    """Computes log(shift + scale x) to the `base`, for which -1, the default, stands for e (Caffe's layer). Bottom and
    top: any shape."""

    def infer(self) -> list[Shape]:
        base = self.message.log_param.base
        if base != -1 and (not base > 0 or base == 1):
            raise self.error(f"expected base above 0 and not 1, or -1 for e, got {base:g}")
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.message.log_param
        factor = 1.0 if param.base == -1 else 1 / math.log(param.base)
        return {"scale": param.scale, "shift": param.shift, "factor": factor}
