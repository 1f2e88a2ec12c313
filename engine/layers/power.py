"""(shift + scale x)^power."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register


@register("Power")
class Power(Activation):
    """Bottom and top: any shape."""

    def attributes(self) -> Attributes:
        param = self.message.power_param
        return {"power": param.power, "scale": param.scale, "shift": param.shift}
