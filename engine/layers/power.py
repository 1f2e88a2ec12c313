"""(shift + scale x)^power."""

from __future__ import annotations

from typing import Any

from engine.layers.activation import Unary
from engine.layers.registry import register


@register("Power")
class Power(Unary):
    """Bottom and top: any shape."""

    def attributes(self) -> dict[str, Any]:
        param = self.message.power_param
        return {"power": param.power, "scale": param.scale, "shift": param.shift}
