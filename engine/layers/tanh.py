"""The hyperbolic tangent."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("TanH")
class TanH(Activation):
    """Bottom and top: any shape."""

    bf16 = True
