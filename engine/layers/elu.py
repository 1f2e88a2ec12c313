"""x, or alpha (exp(x) - 1) where x is negative (Clevert et al. 2015, arXiv 1511.07289)."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes
from engine.layers.registry import register


@register("ELU")
class ELU(Activation):
    """Bottom and top: any shape."""

    bf16 = True

    def attributes(self) -> Attributes:
        return {"alpha": self.message.elu_param.alpha}
