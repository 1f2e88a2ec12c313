"""Sets random values to zero in training; does nothing in testing."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Dropout")
class Dropout(Activation):
    """Bottom and top: any shape, of which the first axis counts samples. At training each element becomes 0 with
    probability `dropout_ratio`, the others are multiplied by 1 / (1 - dropout_ratio)."""

    def infer(self) -> list[Shape]:
        ratio = self.message.dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.error(f"expected dropout_ratio in [0, 1), got {ratio:g}")
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        return super().infer()

    def attributes(self) -> Attributes:
        return {"ratio": self.message.dropout_param.dropout_ratio if self.training else 0.0}

    def flops(self) -> int:
        return super().flops() if self.training else 0
