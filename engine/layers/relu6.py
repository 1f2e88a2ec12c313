"""Limits x to the range from 0 to 6 (Howard et al. 2017, arXiv 1704.04861)."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.registry import register


@register("ReLU6")
class ReLU6(Activation):
    """Computes min(max(x, 0), 6), as several forks do. Bottom and top: any shape. The gradient is that of x where 0 < x
    < 6, else 0."""

    bf16 = True
