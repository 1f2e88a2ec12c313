"""Makes the second bottom of recurrent layers, for sequences that all begin at the first step (CRNN's forks)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ContinuationIndicator")
class ContinuationIndicator(Layer):
    """Tells recurrent layers where sequences begin, as CRNN's forks do. Top: (time_step, batch_size), 0 at the first
    step and 1 at the others."""

    bottom_range = (0, 0)
    differentiable = False
    rows_are_steps = True

    def infer(self) -> list[Shape]:
        param = self.message.continuation_indicator_param
        if param.time_step < 1 or param.batch_size < 1:
            raise self.error(
                f"expected time_step and batch_size of at least 1, got {param.time_step} and {param.batch_size}"
            )
        return [(param.time_step, param.batch_size)]

    def lower(self, builder: Builder) -> None:
        steps = self.message.continuation_indicator_param.time_step
        builder.op("Constant", self, [], {"values": [0.0] + [1.0] * (steps - 1)})  # a step's sequences share a value

    def flops(self) -> int:
        return 0
