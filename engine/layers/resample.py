"""Resizes planes, as FlowNet 2 does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.interp import aligned
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


def taps(
    size: int, centers: np.ndarray, reach: int, weight: Callable[[np.ndarray], np.ndarray], name: str
) -> Attributes:
    """Returns the attributes of the op for one axis: the pixels of the bottom whose weighted mean is a pixel of the
    top.

    Args:
        size: of the bottom.
        centers: where in the bottom the pixels of the top have their centers.
        reach: how many pixels count on each side of the one nearest to the center.
        weight: the weight of a pixel by its distance from the center; the weights are then made to add up to 1.
        name: "row" or "column".
    """
    nearest = np.floor(np.abs(centers) + 0.5) * np.sign(centers)  # rounds halves away from 0, as C does
    places = nearest[:, None].astype(np.int64) + np.arange(-reach, reach + 1)
    weights = np.where((places >= 0) & (places < size), weight(centers[:, None] - places), 0.0)
    total = weights.sum(1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    return {
        f"{name}_first": places[:, 0].tolist(),
        f"{name}_weights": weights.ravel().tolist(),
        f"{name}_taps": places.shape[1],
    }


class Resizing(Layer):
    """The base of layers that resize to a given size. Bottoms: x (N, C, H, W) and, if given, a blob of whose shape the
    top gets height and width; top (N, C, height, width)."""

    bottom_range = (1, 2)
    constant_bottoms = frozenset({1})
    shape_bottoms = frozenset({1})

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the height and width of the top: the second bottom's, or the given ones. Raises ConfigError if they
        do not fit."""
        if any(len(shape) != 4 for shape in self.shapes):
            raise self.error(f"expected bottoms of 4 axes (N, C, H, W), got {', '.join(map(str, self.shapes))}")
        if len(self.shapes) == 2:
            return self.shapes[1][2:]  # pyright: ignore[reportReturnType]
        if min(width, height) < 1:
            raise self.error(f"expected a second bottom, or a height and width of at least 1, got {height} and {width}")
        return height, width

    def flops(self) -> int:
        return 8 * math.prod(self.tops[0].shape)


def triangle(distance: np.ndarray) -> np.ndarray:
    """Returns the weights of linear interpolation."""
    return np.maximum(1 - np.abs(distance), 0)


def cubic(distance: np.ndarray) -> np.ndarray:
    """Returns the weights of cubic interpolation (Keys 1981, with a = -1/2)."""
    x = np.abs(distance)
    near, far = x * x * (1.5 * x - 2.5) + 1, x * (x * (2.5 - 0.5 * x) - 4) + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@register("Resample")
class Resample(Resizing):
    """Interpolates as `type` says: NEAREST, LINEAR (default) or CUBIC (FlowNet 2's layer). Bottoms, top: see Resizing;
    without a second bottom the size is `height` and `width`. A plane that becomes smaller is smoothed, unless
    `antialias: false`.

    With f = size / top size along each axis, the center of pixel i is f_x i + f_y / 2 - 1/2 along x, and
    f_y i + f_x / 2 - 1/2 along y. This is what the fork computes; it is the usual center only if f_x and f_y are equal.
    Gradients are those of the formula; the fork has none.
    """

    bf16 = True

    @property
    def can_widen(self) -> bool:
        return True

    @property
    def param(self):
        return self.message.resample_param

    def infer(self) -> list[Shape]:
        if self.param.type == self.param.AREA:
            raise self.error("expected type NEAREST, LINEAR or CUBIC, got AREA, which no fork computes")
        return [(*self.shapes[0][:2], *self.size(self.param.width, self.param.height))]

    def _axis(self, name: str, at: int) -> Attributes:
        ratios = [size / top for size, top in zip(self.shapes[0][2:], self.tops[0].shape[2:], strict=True)]
        own, other = ratios[at], ratios[1 - at]
        size, centers = self.shapes[0][2 + at], np.arange(self.tops[0].shape[2 + at]) * own + other / 2 - 0.5
        if self.param.type == self.param.NEAREST:
            centers = np.clip(centers, 0, size - 1)
            return taps(size, centers, 0, np.ones_like, name)
        scale = 1 / own if self.param.antialias and max(ratios) > 1 else 1.0
        kernel, width = (triangle, 2) if self.param.type == self.param.LINEAR else (cubic, 4)
        reach = 2 if own < 1 else math.ceil(width / scale)
        return taps(size, centers, reach, lambda distance: kernel(distance * scale), name)

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        axes = {**self._axis("row", 0), **self._axis("column", 1)}
        builder.op("Resample", self, [x], {**axes, "wide": self.widens})


@register("Downsample")
class Downsample(Resizing):
    """Averages pixels by their nearness (FlowNet 2's layer, which has no gradient). Bottoms, top: see Resizing; without
    a second bottom the size is `top_height` and `top_width`.

    With s = (size - 1) / (top size - 1) along each axis, pixel i of the top is the mean of the bottom's pixels less
    than s away from i s, weighted by 1 - distance / s. NaN does not count; if it has more than half as much weight as
    the numbers have, the pixel is NaN.
    """

    differentiable = False
    takes_nan = True

    def infer(self) -> list[Shape]:
        param = self.message.downsample_param
        top = (*self.shapes[0][:2], *self.size(param.top_width, param.top_height))
        if top != self.shapes[0] and min(top[2:]) < 2:
            raise self.error(f"expected a top of at least 2 x 2 pixels, or of the bottom's size, got {top}")
        return [top]

    def _axis(self, name: str, at: int) -> Attributes:
        size, top = self.shapes[0][2 + at], self.tops[0].shape[2 + at]
        step = (size - 1) / (top - 1) if top > 1 else 1.0
        return taps(size, np.arange(top) * step, math.ceil(step), lambda each: triangle(each / max(step, 1e-30)), name)

    def lower(self, builder: Builder) -> None:
        x = builder.plain(self, builder.tensor(self.bottoms[0]))
        if self.tops[0].shape == self.shapes[0]:
            builder.view(self, x, self.shapes[0], self.tops[0])
            return
        builder.op("Downsample", self, [x], {**self._axis("row", 0), **self._axis("column", 1)})


@register("Accum")
class Accum(Layer):
    """Concatenates blobs after bringing them to one size, by bilinear interpolation with aligned corners
    (FlowNet 2's layer). Bottoms (N, C_i, H_i, W_i); top (N, sum of C_i, H, W).

    With `have_reference` the last bottom gives the size, and is not concatenated. Without it the size is the largest
    height and width of the bottoms. This is raised to multiples of `size_divisible_by`, or if that is 0 to `top_height`
    and `top_width`, but only if both sides become larger.
    """

    bottom_range = (1, None)

    @property
    def param(self):
        return self.message.accum_param

    @property
    def constant_bottoms(self) -> frozenset[int]:
        return frozenset({len(self.bottoms) - 1} if self.param.have_reference else ())

    @property
    def _concatenated(self) -> list[Shape]:
        """The shapes of the bottoms that are concatenated."""
        return self.shapes[:-1] if self.param.have_reference else self.shapes

    def infer(self) -> list[Shape]:
        if any(len(shape) != 4 or shape[0] != self.shapes[0][0] for shape in self.shapes):
            raise self.error(f"expected bottoms (N, C, H, W) of one N, got {', '.join(map(str, self.shapes))}")
        if not self._concatenated:
            raise self.error("expected two bottoms at least with have_reference, the last of which gives the size")
        size = self.shapes[-1][2:] if self.param.have_reference else self._largest()
        return [(self.shapes[0][0], sum(shape[1] for shape in self._concatenated), *size)]

    def _largest(self) -> tuple[int, ...]:
        """Returns height and width of the top without a reference."""
        largest = tuple(max(shape[axis] for shape in self.shapes) for axis in (2, 3))
        divisor = self.param.size_divisible_by
        wanted = (self.param.top_height, self.param.top_width)
        if divisor:
            wanted = tuple(-(-size // divisor) * divisor for size in largest)
        raised = all(each > size for each, size in zip(wanted, largest, strict=True))
        return wanted if raised else largest

    def lower(self, builder: Builder) -> None:
        top, resized = self.tops[0], []
        for blob, shape in zip(self.bottoms, self._concatenated):
            x, size = builder.tensor(blob), (*shape[:2], *top.shape[2:])
            if shape != size:
                x = builder.op("Resample", self, [x], aligned(shape, size), tops=[], shapes=[size])[0]
            resized.append(x)
        builder.op("Concat", self, resized, {"axis": 1})

    def flops(self) -> int:
        return 9 * math.prod(self.tops[0].shape)
