"""Computes lambda x, or lambda alpha (exp(x) - 1) where x is negative (Klambauer et al. 2017, arXiv 1706.02515)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("SeLu", "SELU")
class SeLu(Activation):
    """Computes lambda x, or lambda alpha (exp(x) - 1) where x is negative, as several forks do. Bottom and top: any
    shape."""

    bf16 = True

    def lower(self, builder: Builder) -> None:
        param = self.message.selu_param
        x = builder.tensor(self.bottoms[0])
        y = builder.op("ELU", self, [x], {"alpha": param.alpha}, tops=[], shapes=[self.shapes[0]])
        builder.op("Power", self, y, {"power": 1.0, "scale": getattr(param, "lambda"), "shift": 0.0})

    def flops(self) -> int:
        return 2 * super().flops()
