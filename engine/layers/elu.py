"""Computes x, or alpha (exp(x) - 1) where x is negative (Clevert et al. 2015, arXiv 1511.07289)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("ELU")
class ELU(Activation):
    """Computes x where x > 0, else `alpha` (exp(x) - 1) (Caffe's layer). Bottom and top: any shape.

    NVIDIA's `lambda` multiplies both: with alpha 1.6733 and lambda 1.0507 it is SELU
    (Klambauer et al. 2017, arXiv 1706.02515).
    """

    bf16 = True

    @property
    def factor(self) -> float:
        return getattr(self.message.elu_param, "lambda")  # a keyword of Python

    def lower(self, builder: Builder) -> None:
        if self.factor == 1:
            super().lower(builder)
            return
        x = builder.tensor(self.bottoms[0])
        y = builder.op("ELU", self, [x], self.attributes(), tops=[], shapes=[self.shapes[0]])[0]
        builder.op("Power", self, [y], {"power": 1.0, "scale": self.factor, "shift": 0.0})

    def attributes(self) -> Attributes:
        return {"alpha": self.message.elu_param.alpha}
