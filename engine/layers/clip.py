"""Limits x to the range from `min` to `max`."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Clip")
class Clip(Activation):
    """Computes min(max(x, `min`), `max`), of fields without defaults (Caffe's layer). Bottom and top: any shape. The
    gradient passes where `min` <= x <= `max`."""

    bf16 = True

    def infer(self) -> list[Shape]:
        param = self.message.clip_param
        if not (param.HasField("min") and param.HasField("max")):
            raise self.error("expected min and max in clip_param")
        if not param.min <= param.max:
            raise self.error(f"expected min up to max, got min {param.min:g} and max {param.max:g}")
        return super().infer()

    def attributes(self) -> Attributes:
        return {"min": self.message.clip_param.min, "max": self.message.clip_param.max}
