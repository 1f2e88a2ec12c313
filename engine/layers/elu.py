"""x, or alpha (exp(x) - 1) where x is negative (Clevert et al. 2015, arXiv 1511.07289)."""

from __future__ import annotations

from typing import Any

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("ELU")
class ELU(Activation):
    """Bottom and top: any shape."""

    bf16 = True

    def attributes(self) -> dict[str, Any]:
        return {"alpha": self.message.elu_param.alpha}
