"""Computes x, or a learned slope times x where x is not positive (He et al. 2015, arXiv 1502.01852)."""

from __future__ import annotations

from engine import proto
from engine.layers.activation import Activation
from engine.layers.base import Parameter, Shape
from engine.layers.registry import register


@register("PReLU")
class PReLU(Activation):
    """Computes x where it is above 0, else a learned slope times x (Caffe's layer). Bottom and top (N, C, ...), of 2 to
    5 axes; params: slopes (C), or () with `channel_shared`; 0.25 without a filler."""

    bf16 = True

    def infer(self) -> list[Shape]:
        rank = len(self.shapes[0])
        if not 2 <= rank <= 5:
            raise self.error(f"expected a bottom of 2 to 5 axes, got {self.shapes[0]}")
        return super().infer()

    def make_params(self) -> list[Parameter]:
        param = self.message.prelu_param
        quarter = proto.FillerParameter(type="constant", value=0.25)
        shape = () if param.channel_shared else self.shapes[0][1:2]
        return [Parameter(shape, param.filler if param.HasField("filler") else quarter)]

    def flops(self) -> int:
        return 2 * super().flops()
