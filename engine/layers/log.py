"""The logarithm of shift + scale x."""

from __future__ import annotations

import math

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Log")
class Log(Activation):
    """Bottom and top: any shape. base -1 (the default) means e."""

    def infer(self) -> list[Shape]:
        base = self.message.log_param.base
        if base != -1 and (not base > 0 or base == 1):
            raise self.error(f"expected base above 0 and not 1, or -1 for e, got {base:g}")
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.message.log_param
        factor = 1.0 if param.base == -1 else 1 / math.log(param.base)
        return {"scale": param.scale, "shift": param.shift, "factor": factor}
