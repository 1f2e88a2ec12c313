"""Scales a blob, and adds or subtracts a mean, from FlowNet 2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Layer, Shape
from engine.layers.registry import register
from engine.weights.protobuf import read_blob

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Mean")
class Mean(Layer):
    """Computes output_scale (input_scale x + mean_scale m), or, with `operation: SUBTRACT`, - mean_scale m
    (FlowNet 2's layer). Bottoms (N, C, H, W); tops: one for each bottom, of its shape.

    The mean m is `value`, one number or several, or the image in `file`, a binaryproto. If it has fewer channels than
    x, it is repeated.
    """

    bottom_range = (1, None)
    top_range = (1, None)
    in_pairs = True

    @property
    def param(self):
        return self.message.mean_param

    def infer(self) -> list[Shape]:
        param = self.param
        if len(self.message.top) != len(self.shapes):
            raise self.error(f"expected a top for each bottom, got {len(self.message.top)} and {len(self.shapes)}")
        if bool(param.value) == param.HasField("file"):
            raise self.error("expected either value or file, the mean")
        mean = self._mean().shape
        for shape in self.shapes:
            if len(shape) != 4 or shape[1] % mean[0] or (mean[1:] not in ((1, 1), shape[2:])):
                raise self.error(f"expected a bottom (N, C, H, W) that a mean of {mean} fits, got {shape}")
        return self.shapes

    def _mean(self) -> np.ndarray:
        """Returns the mean, (C', H, W) or (C', 1, 1), where C' divides the channels of a bottom."""
        if self.param.value:
            return np.array(self.param.value, np.float32).reshape(-1, 1, 1)
        mean = read_blob(self.param.file)
        return mean.reshape(-1, *mean.shape[-2:]) if mean.ndim > 1 else mean.reshape(-1, 1, 1)

    def lower(self, builder: Builder) -> None:
        param, mean = self.param, self._mean()
        sign = -1 if param.operation == param.SUBTRACT else 1
        for bottom, top in zip(self.bottoms, self.tops, strict=True):
            x = builder.plain(self, builder.tensor(bottom))
            scaled = builder.op(
                "Power",
                self,
                [x],
                {"power": 1.0, "scale": param.output_scale * param.input_scale, "shift": 0.0},
                tops=[],
                shapes=[bottom.shape],
                gradients=[top.needs_gradient],
            )
            added = sign * param.output_scale * param.mean_scale * np.tile(mean, (bottom.shape[1] // len(mean), 1, 1))
            shape = added.shape if added.shape[1:] != (1, 1) else added.shape[:1]
            values = {"values": added.ravel().tolist()}
            shift = builder.op("Constant", self, [], values, tops=[], shapes=[shape], gradients=[False])
            axes = {"axis": 1, "num_axes": len(shape)}
            builder.op("Bias", self, [*scaled, *shift], axes, tops=[top])

    def flops(self) -> int:
        return 2 * sum(math.prod(shape) for shape in self.shapes)
