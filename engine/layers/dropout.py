"""Sets random values to zero in training; does nothing in testing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Dropout")
class Dropout(Activation):
    """Bottom and top: any shape, of which the first axis counts samples: of (T, N, ...) the mask is another on another
    number of ranks. At training each element becomes 0 with probability `dropout_ratio`, the others are multiplied by
    1 / (1 - dropout_ratio).

    With R-FCN's `scale_train: false` the others stay as they are, and at test all are multiplied by 1 - dropout_ratio.
    With SegNet's `sample_weights_test` elements are dropped at test, too (Gal and Ghahramani 2016, arXiv 1506.02142).
    """

    def infer(self) -> list[Shape]:
        ratio = self.message.dropout_param.dropout_ratio
        if not (0 <= ratio < 1 or (ratio == 1 and not self.drops)):
            raise self.error(f"expected dropout_ratio in [0, 1), got {ratio:g}")
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        return super().infer()

    @property
    def drops(self) -> bool:
        return self.training or self.message.dropout_param.sample_weights_test

    def attributes(self) -> Attributes:
        return {"ratio": self.message.dropout_param.dropout_ratio if self.drops else 0.0}

    def lower(self, builder: Builder) -> None:
        param = self.message.dropout_param
        if param.scale_train or param.dropout_ratio == 0:
            super().lower(builder)
            return
        x = builder.tensor(self.bottoms[0])
        if self.drops:
            x = builder.op("Dropout", self, [x], self.attributes(), tops=[], shapes=[self.shapes[0]])[0]
        keeps = {"power": 1.0, "scale": 1 - param.dropout_ratio, "shift": 0.0}
        builder.op("Power", self, [builder.plain(self, x)], keeps)

    def flops(self) -> int:
        return super().flops() if self.drops else 0
