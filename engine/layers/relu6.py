"""x limited to the range from 0 to 6 (Howard et al. 2017, arXiv 1704.04861)."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("ReLU6")
class ReLU6(Activation):
    """Bottom and top: any shape. The gradient passes where 0 < x < 6."""

    bf16 = True
