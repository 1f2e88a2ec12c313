"""Resizes planes by bilinear interpolation with aligned corners, as DeepLab does with its scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


def aligned(bottom: Shape, top: Shape, crop: tuple[int, int] = (0, 0)) -> Attributes:
    """Returns the attributes of the op Resample for bilinear interpolation with aligned corners: the first and the last
    pixel of the bottom along an axis become those of the top.

    bottom, top: (N, C, H, W). crop: how many pixels are left out at the beginning and at the end of each axis.
    """
    attributes: Attributes = {}
    for name, size, wanted in zip(("row", "column"), bottom[2:], top[2:], strict=True):
        last = size - sum(crop) - 1
        places = np.arange(wanted) * (last / (wanted - 1) if wanted > 1 else 0.0)
        first = np.minimum(places.astype(np.int64), max(last - 1, 0))
        weight = places - first  # of the second pixel
        attributes[f"{name}_first"] = (crop[0] + first).tolist()
        attributes[f"{name}_weights"] = np.stack([1 - weight, weight], 1).ravel().tolist()
        attributes[f"{name}_taps"] = 2
    return attributes


@register("Interp")
class Interp(Layer):
    """Resizes planes, as the forks of DeepLab and PSPNet do. Bottom: (N, C, H, W). Top: (N, C, height, width).

    The top has the size that `height` and `width` give. Without them a size s becomes t = (s - 1) / `shrink_factor` + 1
    and then t + (t - 1) (`zoom_factor` - 1). `pad_beg` and `pad_end`, 0 or below, crop the bottom first: both are added
    to s.
    """

    bf16 = True

    @property
    def can_widen(self) -> bool:
        return True

    @property
    def param(self):
        return self.message.interp_param

    def infer(self) -> list[Shape]:
        shape, param = self.shapes[0], self.param
        if len(shape) != 4:
            raise self.error(f"expected a bottom of 4 axes (N, C, H, W), got {shape}")
        if param.pad_beg > 0 or param.pad_end > 0:
            raise self.error(
                f"expected pad_beg and pad_end of 0 or below (they crop), got {param.pad_beg} and {param.pad_end}"
            )
        cropped = [size + param.pad_beg + param.pad_end for size in shape[2:]]
        if min(cropped) < 1:
            raise self.error(f"expected pads that leave a pixel of {shape}, got {param.pad_beg} and {param.pad_end}")
        return [(*shape[:2], *self._resized(cropped))]

    def _resized(self, sizes: list[int]) -> list[int]:
        """Returns the height and width of the top. sizes: those of the cropped bottom."""
        param = self.param
        sized = param.HasField("height") or param.HasField("width")
        scaled = param.HasField("zoom_factor") or param.HasField("shrink_factor")
        if sized == scaled:
            raise self.error("expected either height and width, or zoom_factor and shrink_factor or one of them")
        if sized:
            if param.height < 1 or param.width < 1:
                raise self.error(f"expected height and width of at least 1, got {param.height} and {param.width}")
            return [param.height, param.width]
        if param.zoom_factor < 1 or param.shrink_factor < 1:
            raise self.error(f"expected factors of at least 1, got {param.zoom_factor} and {param.shrink_factor}")
        shrunk = [(size - 1) // param.shrink_factor + 1 for size in sizes]
        return [size + (size - 1) * (param.zoom_factor - 1) for size in shrunk]

    def lower(self, builder: Builder) -> None:
        crop = (-self.param.pad_beg, -self.param.pad_end)
        attributes = aligned(self.shapes[0], self.tops[0].shape, crop)
        builder.op("Resample", self, [builder.tensor(self.bottoms[0])], {**attributes, "wide": self.widens})

    def flops(self) -> int:
        return 9 * math.prod(self.tops[0].shape)
