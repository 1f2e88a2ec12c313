"""Sets random whole channels to zero in training; does nothing in testing (Tompson et al. 2015, arXiv 1411.4280)."""

from __future__ import annotations

from engine.layers.activation import Activation
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register


@register("SpatialDropout")
class SpatialDropout(Activation):
    """In TRAIN each channel of each sample becomes 0 with probability `dropout_ratio`, and the others are multiplied by
    1 / (1 - dropout_ratio) (Intel's layer). Bottom and top (N, C, ...)."""

    bf16 = True

    def infer(self) -> list[Shape]:
        ratio = self.message.spatial_dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.error(f"expected dropout_ratio in [0, 1), got {ratio:g}")
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes, got {self.shapes[0]}")
        return super().infer()

    def attributes(self) -> Attributes:
        return {"ratio": self.message.spatial_dropout_param.dropout_ratio if self.training else 0.0}

    def flops(self) -> int:
        return super().flops() if self.training else 0
