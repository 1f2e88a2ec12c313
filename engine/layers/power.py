"""Computes (shift + scale x)^power."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Power")
class Power(Activation):
    """Computes (shift + scale x)^power (Caffe's layer). Bottom and top: any shape.

    It runs in bf16 if the power is 1, as behind residuals that are scaled, or 2. Other powers, Exp and Log make the
    roots, quotients and likelihoods of losses and norms, where they are added up and need more digits than bf16 has.
    These stay in float32, as exp, log and pow do in PyTorch's autocast for CUDA (its CPU autocast leaves them in bf16).
    """

    bf16 = True

    def infer(self) -> list[Shape]:
        self.bf16 = self.message.power_param.power in (1, 2)
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.message.power_param
        return {"power": param.power, "scale": param.scale, "shift": param.shift}
