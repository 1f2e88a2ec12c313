"""Computes x, or x / a where x is negative, with a random a in training (Xu et al. 2015, arXiv 1505.00853)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.base import Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Insanity")
class Insanity(Activation):
    """Divides x by a where it is negative (happynear's layer). In TRAIN a is uniform in [`lb`, `ub`) for each element,
    in TEST it is (`ub` - `lb`) / log |`ub` / `lb`|. Bottom and top: any shape, whose first axis counts samples."""

    def infer(self) -> list[Shape]:
        lower, upper = self.message.insanity_param.lb, self.message.insanity_param.ub
        if not lower < upper or lower * upper <= 0:
            raise self.error(f"expected lb below ub, both positive or both negative, got {lower:g} and {upper:g}")
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        return super().infer()

    def lower(self, builder: Builder) -> None:
        lower, upper = self.message.insanity_param.lb, self.message.insanity_param.ub
        x = builder.tensor(self.bottoms[0])
        if self.training:
            builder.op("Insanity", self, [x], {"lower": lower, "upper": upper})
        else:
            builder.op("ReLU", self, [x], {"negative_slope": math.log(upper / lower) / (upper - lower)})
