"""Averages heat maps of several scales, in another size (OpenPose, Cao et al. 2017, arXiv 1611.08050)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

TAPS = 4


def cubic(x: np.ndarray) -> np.ndarray:
    """Returns (..., 4), the weights of four neighbours. x: how far from the second to the third a place lies."""
    first, last = x * (x * (1 - x / 2) - 0.5), x * x * (x - 1) / 2
    second = x * x * (1.5 * x - 2.5) + 1
    return np.stack([first, second, 1 - first - second - last, last], -1)


def axis_attributes(size: int, pad: int, top: int, name: str, scale: float = 1.0) -> Attributes:
    """Returns the attributes of the op Resample for an axis along which `size` pixels, without `pad` at each end,
    become `top`, by cubic interpolation times `scale`.

    name: "row" or "column". As in the fork, pixels beyond an end are the last one there, and a place before the center
    of the first pixel counts as one behind it, at a negative distance.
    """
    inner = size - 2 * pad
    at = (np.arange(top) + 0.5) * (inner / top) - 0.5
    low = np.clip((at + 1e-5).astype(np.int64), 0, inner - 1)
    neighbours = np.clip(low[:, None] + np.arange(-1, TAPS - 1), 0, inner - 1)
    first = np.minimum(neighbours[:, 0], max(inner - TAPS, 0))
    weights = np.zeros((top, TAPS))
    np.add.at(weights, (np.arange(top)[:, None], neighbours - first[:, None]), cubic(at - low) * scale)
    return {
        f"{name}_first": (first + pad).tolist(),
        f"{name}_weights": weights.ravel().tolist(),
        f"{name}_taps": TAPS,
    }


@register("ImResize")
class ImResize(Layer):
    """Computes the mean of the heat maps of one picture in N scales, resized by cubic interpolation (OpenPose's layer).

    Bottom: (N, C, H, W). In the middle of image n is the picture, start_scale - n scale_gap times as large as the map.
    Top: (1, C, h, w), `factor` times the bottom's height and width or, if that is 0, `target_spatial_height` and
    `target_spatial_width`.
    """

    @property
    def param(self):
        return self.message.imresize_param

    @property
    def around(self) -> np.ndarray:
        """The share of the map that is around the picture, in each image, computed in float32 as in the fork."""
        numbers = np.arange(self.shapes[0][0], dtype=np.float32)
        with np.errstate(over="ignore"):
            return np.float32(1) - np.float32(self.param.start_scale) + numbers * np.float32(self.param.scale_gap)

    def pads(self, size: int) -> list[int]:
        """Returns how many pixels along an axis are on either side of the picture, in each image."""
        return np.floor(np.float32(size // 2) * self.around).astype(int).tolist()

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.param
        if len(shape) != 4:
            raise self.error(f"expected a bottom (N, C, H, W), got {shape}")
        if param.factor:
            with np.errstate(over="ignore"):
                sides = np.asarray(shape[2:], np.float32) * np.float32(param.factor)
            size = tuple(int(side) for side in np.clip(sides, 0, 2**31))  # no blob may be as large
        else:
            size = (param.target_spatial_height, param.target_spatial_width)
        if min(size) < 1:
            raise self.error(f"expected a top of at least 1 x 1 pixels, got {size[0]} x {size[1]}")
        if not all(0 <= share < 1 for share in self.around):
            raise self.error(
                f"expected scales above 0 and up to 1, start_scale less 0 to {shape[0] - 1} times scale_gap, got "
                f"{param.start_scale:g} and {param.scale_gap:g}"
            )
        return [(1, shape[1], *size)]

    def lower(self, builder: Builder) -> None:
        (images, channels, height, width), top = self.shapes[0], self.tops[0]
        x = builder.tensor(self.bottoms[0])
        each = [x]
        if images > 1:
            one = [(1, channels, height, width)] * images
            each = builder.op("Slice", self, [builder.plain(self, x)], {"axis": 0}, params=[], tops=[], shapes=one)
        resized = []
        for image, down, across in zip(each, self.pads(height), self.pads(width), strict=True):
            axes = {
                **axis_attributes(height, down, top.shape[2], "row", 1 / images),
                **axis_attributes(width, across, top.shape[3], "column"),
            }
            given = {} if images == 1 else {"params": [], "tops": [], "shapes": [top.shape]}
            resized += builder.op("Resample", self, [image], {**axes, "wide": False}, **given)
        if images > 1:
            builder.op("EltwiseSum", self, resized, {"coefficients": [1.0] * images, "relu": False})

    def flops(self) -> int:
        return 2 * TAPS * (1 + TAPS) * math.prod(self.tops[0].shape) * self.shapes[0][0]
