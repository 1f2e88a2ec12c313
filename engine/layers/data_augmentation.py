"""The mean that FlowNet 2's nets take off their pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


@register("DataAugmentation")
class DataAugmentation(Layer):
    """Bottom (N, C, H, W), top: the bottom less a mean, which TEST does of FlowNet 2's layer: `mean` with
    `mean_per_pixel: false`, or, with `recompute_mean`, that of a file of weights, one for each channel or, with
    `mean_per_pixel`, for each pixel; params: a count (1, 1, 1, 1), with `recompute_mean` means (1, C, H, W) and
    (1, C, 1, 1)."""

    @property
    def param(self):
        return self.message.augmentation_param

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.param
        if len(shape) != 4:
            raise self.error(f"expected a bottom (N, C, H, W), got {shape}")
        if param.augment_during_test or (self.training and (param.recompute_mean or param.HasField("crop_width"))):
            raise self.error("expected the TEST phase without augment_during_test: pictures are not changed here")
        if param.HasField("crop_width") and (param.crop_height, param.crop_width) != shape[2:]:
            raise self.error(
                f"expected no crop_height and crop_width but the bottom's, {shape[2:]}, got "
                f"{(param.crop_height, param.crop_width)}; a layer of type Crop makes pictures smaller"
            )
        if self._given and shape[1] != len(param.mean):
            raise self.error(f"expected a mean for each of the {shape[1]} channels, got {len(param.mean)}")
        return [shape]

    @property
    def _given(self) -> bool:
        return not self.param.recompute_mean and bool(self.param.mean) and not self.param.mean_per_pixel

    def make_params(self) -> list[Parameter]:
        channels, *size = self.shapes[0][1:]
        shapes = [(1, 1, 1, 1), (1, channels, *size), (1, channels, 1, 1)]
        params = [Parameter(shape, frozen=True, lr_mult=0.0, row_major=True) for shape in shapes]
        params[1].unread = not self.param.mean_per_pixel
        return params if self.param.recompute_mean else params[:1]

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        for parameter in self.params:  # those that no op reads, too
            builder.parameter(parameter)
        if self.param.recompute_mean:
            shift, axes = self._negated(builder, self.params[1 if self.param.mean_per_pixel else 2])
        else:
            values = (-np.array(self.param.mean)).tolist() if self._given else [0.0] * self.shapes[0][1]
            shift = builder.op(
                "Constant", self, [], {"values": values}, params=[], tops=[], shapes=[(len(values),)], gradients=[False]
            )[0]
            axes = 1
        builder.op("Bias", self, [x, shift], {"axis": 1, "num_axes": axes}, params=[])

    def _negated(self, builder: Builder, mean: Parameter) -> tuple[Tensor, int]:
        """Minus the mean, and over how many axes it goes."""
        shape = mean.shape[1:] if mean.shape[2:] != (1, 1) else mean.shape[1:2]
        values = builder.view(self, builder.parameter(mean).without_diff(), shape)
        minus = {"power": 1.0, "scale": -1.0, "shift": 0.0}
        negated = builder.op("Power", self, [values], minus, params=[], tops=[], shapes=[shape], gradients=[False])
        return negated[0], len(shape)

    def flops(self) -> int:
        return math.prod(self.shapes[0])
