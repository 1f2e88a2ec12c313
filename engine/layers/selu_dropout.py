"""Drops values, but keeps mean and variance of self-normalising nets (Klambauer et al. 2017, arXiv 1706.02515)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.base import Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("SeLuDropout", "SELUDropout", "AlphaDropout")
class SeLuDropout(Activation):
    """Sets values to `alpha` with probability p = `dropout_ratio` in TRAIN, and scales and shifts all; does nothing in
    TEST. Bottom and top: any shape with samples along the first axis.

    The value x' that is left, x or alpha, becomes a x' + b, with a = ((1 - p) (1 + p alpha^2))^-1/2 and b = -a p alpha.
    """

    def infer(self) -> list[Shape]:
        ratio = self.message.selu_dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.error(f"expected dropout_ratio in [0, 1), got {ratio:g}")
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        return super().infer()

    def lower(self, builder: Builder) -> None:
        param, shape = self.message.selu_dropout_param, self.shapes[0]
        ratio, alpha = param.dropout_ratio, param.alpha
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        if not self.training:
            builder.op("Dropout", self, [x], {"ratio": 0.0})
            return
        # Dropout computes x m / (1 - p), where m is 1 for values that stay and 0 for others. Asked for is
        # x m + alpha (1 - m) = (x - alpha) m + alpha.
        scale = ((1 - ratio) * (1 + ratio * alpha**2)) ** -0.5
        shifted = builder.op("Power", self, [x], {"power": 1.0, "scale": 1.0, "shift": -alpha}, tops=[], shapes=[shape])
        kept = builder.op("Dropout", self, shifted, {"ratio": ratio}, tops=[], shapes=[shape])
        shift = scale * alpha * (1 - ratio)
        builder.op("Power", self, kept, {"power": 1.0, "scale": scale * (1 - ratio), "shift": shift})

    def flops(self) -> int:
        return 3 * super().flops() if self.training else 0
