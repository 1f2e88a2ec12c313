"""Lays around each position of a feature map the prior boxes to which a detector's predictions are relative (SSD)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

MOST_SIZES = 1000  # of min_size, and of aspect_ratio: infer() makes all of their product's boxes


@register("PriorBox")
class PriorBox(Layer):
    """Lays boxes around the pixels of a feature map (SSD's layer). Bottoms: features (N, C, H, W) and, unless the text
    gives the image's size, the images; top (1, 2, H W boxes 4): the corners x1, y1, x2, y2 of the boxes, in fractions
    of the image's sides, and their variances.

    For each min_size s, a whole number (fractions are cut off), a pixel has a square of side s, one of side
    sqrt(s max_size) if max_size is given, and for each aspect ratio a but 1 a box of width s sqrt(a) and height
    s / sqrt(a).
    """

    bottom_range = (1, 2)
    differentiable = False
    constant_bottoms = frozenset({0, 1})

    @property
    def param(self):
        return self.message.prior_box_param

    def infer(self) -> list[Shape]:
        for shape in self.shapes:
            if len(shape) != 4:
                raise self.error(f"expected bottoms of 4 axes (N, C, H, W), got {shape}")
        param = self.param
        for field in ("min_size", "aspect_ratio"):
            if len(getattr(param, field)) > MOST_SIZES:
                raise self.error(f"expected {MOST_SIZES} {field} at most, got {len(getattr(param, field))}")
        if not param.min_size or min(param.min_size) < 1:
            raise self.error(f"expected at least one min_size, of 1 or more, got {list(param.min_size)}")
        if param.max_size and len(param.max_size) != len(param.min_size):
            raise self.error(f"expected a max_size for each min_size, {len(param.min_size)}, got {len(param.max_size)}")
        if any(small >= large for small, large in zip(param.min_size, param.max_size)):
            raise self.error(
                f"expected each max_size above its min_size, got {list(param.max_size)} for {list(param.min_size)}"
            )
        if len(param.variance) not in (0, 1, 4) or min(param.variance, default=1) <= 0:
            raise self.error(f"expected 1 or 4 values of variance, above 0, got {list(param.variance)}")
        if min(param.aspect_ratio, default=1) <= 0:
            raise self.error(f"expected aspect ratios above 0, got {list(param.aspect_ratio)}")
        height, width = self.shapes[0][2:]
        return [(1, 2, height * width * len(self.sizes()) * 4)]

    def sizes(self) -> list[tuple[float, float]]:
        """Returns the width and height of each box around a pixel, in pixels of the image."""
        sizes, ratios = [], self._aspect_ratios()
        for i, given in enumerate(self.param.min_size):
            side = int(given)
            sizes.append((side, side))
            if self.param.max_size:
                sizes.append((math.sqrt(side * int(self.param.max_size[i])),) * 2)
            sizes += [(side * math.sqrt(a), side / math.sqrt(a)) for a in ratios]
        return sizes

    def _aspect_ratios(self) -> list[float]:
        """Returns the different aspect ratios, without 1."""
        ratios = [1.0]
        for ratio in self.param.aspect_ratio:
            if all(abs(ratio - known) >= 1e-6 for known in ratios):
                ratios += [ratio, 1 / ratio] if self.param.flip else [ratio]
        return ratios[1:]

    def _pair(self, square: str, stem: str) -> tuple[float, float] | None:
        """Returns height and width, from the field `square` or from the two fields that begin with `stem`; None if none
        is given."""
        both = [f"{stem}_h", f"{stem}_w"]
        param, given = self.param, [field for field in both if self.param.HasField(field)]
        if given and (len(given) != 2 or param.HasField(square)):
            raise self.error(f"expected either {square} or both {both[0]} and {both[1]}")
        pair = tuple(getattr(param, field) for field in (both if given else [square] * 2))
        if not given and not param.HasField(square):
            return None
        if min(pair) <= 0:
            raise self.error(f"expected {square if not given else stem + '_h and ' + stem + '_w'} above 0, got {pair}")
        return pair

    @np.errstate(over="raise", divide="raise", invalid="raise")
    def boxes(self) -> np.ndarray:
        """Returns the top (1, 2, H W boxes 4) without its first axis, float32. Raises ConfigError if the image's size
        is not known."""
        height, width = self.shapes[0][2:]
        image = self._pair("img_size", "img")
        if image is None:
            if len(self.shapes) == 1:
                raise self.error("expected a second bottom, the images, or img_size")
            image = self.shapes[1][2:]
        step = self._pair("step", "step") or (image[0] / height, image[1] / width)
        offset = self.param.offset
        y, x = np.meshgrid((np.arange(height) + offset) * step[0], (np.arange(width) + offset) * step[1], indexing="ij")
        centers = np.stack([x, y, x, y], -1)[:, :, None]
        reach = np.array([(-w / 2, -h / 2, w / 2, h / 2) for w, h in self.sizes()])
        boxes = (centers + reach) / np.array([image[1], image[0]] * 2)
        if self.param.clip:
            boxes = boxes.clip(0, 1)
        variances = np.array(list(self.param.variance) or [0.1])
        return np.stack([boxes.ravel(), np.broadcast_to(variances, boxes.shape).ravel()]).astype(np.float32)

    def lower(self, builder: Builder) -> None:
        builder.op("Constant", self, [], {"values": self.boxes().ravel().tolist()})
