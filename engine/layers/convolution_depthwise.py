"""Convolves each channel separately, under the names that several forks use."""

from __future__ import annotations

from engine import proto
from engine.layers.base import Shape
from engine.layers.convolution import Convolution
from engine.layers.registry import register


@register("ConvolutionDepthwise", "DepthwiseConvolution", "ConvolutionDepthWise")
class ConvolutionDepthwise(Convolution):
    """Convolves each channel separately, as several forks do: the group is the number of channels, which `group` need
    not say. `num_output` is that number by default, and may be a multiple of it. params: weights
    (num_output, 1, kernel...) and, with `bias_term`, bias (num_output)."""

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) > 1:
            own = proto.LayerParameter()  # a copy, as the config may be built again with other channels
            own.CopyFrom(self.message)
            self.message = own
            param, channels = self.param, self.seen[1]
            if param.HasField("group") and param.group not in (1, channels):
                raise self.error(f"expected group {channels}, the channels of the bottom, or none, got {param.group}")
            param.group = channels
            if not param.HasField("num_output"):
                param.num_output = channels
        return super().infer()
