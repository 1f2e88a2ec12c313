"""max(x, 0), or negative_slope * x where x is negative."""

from __future__ import annotations

from typing import Any

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("ReLU")
class ReLU(Activation):
    """Bottom and top: any shape."""

    bf16 = True

    def attributes(self) -> dict[str, Any]:
        return {"negative_slope": self.message.relu_param.negative_slope}
