"""Batch normalisation with BVLC's three blobs; Scale and ReLU behind it can be fused in."""

from __future__ import annotations

import math
from typing import Any

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register


@register("BatchNorm")
class BatchNorm(Layer):
    """Bottom and top (N, C, ...); params: mean sum (C), variance sum (C), the factor that both are divided by (1).

    Files of Intel's form with scale and shift in the same layer are read by the weights reader, not here: a net says
    BatchNorm, then Scale.
    """

    scale = shift = relu = False  # what `absorb` has taken over

    def infer(self) -> list[Shape]:
        if len(self.shapes[0]) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (N, C), got {self.shapes[0]}")
        return [self.shapes[0]]

    def make_params(self) -> list[Parameter]:
        channels = self.shapes[0][1]
        return [Parameter(shape, statistics=True, lr_mult=0.0) for shape in ((channels,), (channels,), (1,))]

    @property
    def use_global_stats(self) -> bool:
        param = self.message.batch_norm_param
        return param.use_global_stats if param.HasField("use_global_stats") else not self.training

    def attributes(self) -> dict[str, Any]:
        param = self.message.batch_norm_param
        return {
            "eps": param.eps,
            "moving_average_fraction": param.moving_average_fraction,
            "use_global_stats": self.use_global_stats,
            "scale": self.scale,
            "shift": self.shift,
            "relu": self.relu or param.relu,
        }

    def absorb(self, following: Layer) -> bool:
        """Takes over a Scale of the channels, with its params, and a ReLU without slope behind that."""
        if self.relu or self.message.batch_norm_param.relu:
            return False
        if following.type == "Scale" and not self.scale and self._is_per_channel(following):
            self.scale, self.shift = True, len(following.params) == 2
            self.params = self.params + following.params
        elif following.type == "ReLU" and following.message.relu_param.negative_slope == 0:
            self.relu = True
        else:
            return False
        return True

    def _is_per_channel(self, scale: Layer) -> bool:
        if len(scale.bottoms) != 1 or scale.message.scale_param.axis != 1:
            return False
        return scale.params[0].shape == (self.shapes[0][1],)

    def flops(self) -> int:
        per_element = 2 if self.use_global_stats else 6  # normalise; and the sums for mean and variance
        return (per_element + self.scale + self.shift + self.relu) * math.prod(self.shapes[0])
