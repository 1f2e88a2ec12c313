"""(shift + scale x)^power."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("Power")
class Power(Activation):
    """Bottom and top: any shape.

    In bf16 where the power is 1, as behind residuals that are scaled, or 2. Other powers, as Exp and Log, make roots,
    quotients and likelihoods for losses and norms, which are added up with more digits than bf16 has: those stay
    float32, as exp, log and pow do in PyTorch's autocast for CUDA (its CPU autocast leaves them in bf16).
    """

    bf16 = True

    def infer(self) -> list[Shape]:
        self.bf16 = self.message.power_param.power in (1, 2)
        return super().infer()

    def attributes(self) -> Attributes:
        param = self.message.power_param
        return {"power": param.power, "scale": param.scale, "shift": param.shift}
