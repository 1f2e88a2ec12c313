"""Reverses gradients, so that what follows learns to tell domains apart, and what comes before to make them alike
(Ganin et al. 2016, arXiv 1505.07818)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("GradientScaler")
class GradientScaler(Layer):
    """Passes its bottoms on, and multiplies their gradients by -c (DANN's layer). Bottoms: one or more, of any shapes.
    Tops: one for each bottom, of its shape.

    c = lower_bound + (upper_bound - lower_bound) (2 / (1 + exp(-alpha p)) - 1), with p = min(iteration / max_iter, 1),
    goes from `lower_bound` towards `upper_bound`.
    """

    bf16 = True
    bottom_range = (1, None)
    top_range = (1, None)
    in_pairs = True

    def infer(self) -> list[Shape]:
        param = self.message.gradient_scaler_param
        if len(self.message.top) != len(self.shapes):
            raise self.error(f"expected a top for each bottom, got {len(self.shapes)} and {len(self.message.top)}")
        if not (param.lower_bound <= param.upper_bound and param.alpha >= 0 and param.max_iter >= 1):
            raise self.error(
                "expected lower_bound up to upper_bound, alpha of at least 0 and max_iter of at least 1, got "
                f"{param.lower_bound:g}, {param.upper_bound:g}, {param.alpha:g} and {param.max_iter:g}"
            )
        return self.shapes

    def attributes(self) -> Attributes:
        param = self.message.gradient_scaler_param
        return {name: getattr(param, name) for name in ("lower_bound", "upper_bound", "alpha", "max_iter")}

    def lower(self, builder: Builder) -> None:
        for bottom, top in zip(self.bottoms, self.tops, strict=True):
            builder.op("GradientScaler", self, [builder.tensor(bottom)], self.attributes(), tops=[top])

    def flops(self) -> int:
        return 0
