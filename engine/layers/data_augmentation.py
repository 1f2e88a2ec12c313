"""Subtracts a mean from pictures, as the nets of FlowNet 2 do."""

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
    """Subtracts a mean, which is what FlowNet 2's layer does in TEST. It does not change pictures at random, as the
    fork's layer does in TRAIN.

    Bottom and top: (N, C, H, W); params: a count (1, 1, 1, 1), with `recompute_mean` means (1, C, H, W) and
    (1, C, 1, 1).

    With `recompute_mean` the mean comes from a file of weights: one for each pixel or, with `mean_per_pixel: false`,
    one for each channel. Without it, it is `mean` with `mean_per_pixel: false`, and else 0.
    """

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
        """Whether the text gives the mean."""
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
        """Returns minus the mean of a parameter, and how many axes it has, from the channels on."""
        shape = mean.shape[1:] if mean.shape[2:] != (1, 1) else mean.shape[1:2]
        values = builder.view(self, builder.parameter(mean).without_diff(), shape)
        minus = {"power": 1.0, "scale": -1.0, "shift": 0.0}
        negated = builder.op("Power", self, [values], minus, params=[], tops=[], shapes=[shape], gradients=[False])
        return negated[0], len(shape)

    def flops(self) -> int:
        return math.prod(self.shapes[0])
