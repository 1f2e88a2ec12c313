"""Random erasing (Zhong et al. 2017, arXiv 1708.04896): a rectangle of a picture becomes noise. happynear's fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_range, check_within

if TYPE_CHECKING:
    from engine.proto import TransformationParameter

_TRIALS = 100


class Erasure(NamedTuple):
    """A rectangle of a crop, and the key of its noise."""

    top: int
    left: int
    height: int
    width: int
    key: int

    def apply(self, pixels: np.ndarray) -> None:
        """Erases the rectangle of a crop (h, w, c), in place."""
        noise = np.random.Generator(np.random.Philox(key=self.key))
        erased = pixels[self.top : self.top + self.height, self.left : self.left + self.width]
        erased[:] = noise.integers(0, 256, erased.shape, np.uint8)


def make_erase(param: TransformationParameter, where: str | None) -> Callable[[KeyedRandom, int, int], Erasure | None]:
    """Returns a function that draws the rectangle to erase of a crop (height, width), or None: with probability
    erase_ratio a rectangle of scale_min to scale_max of the area, with an aspect ratio of aspect_min to aspect_max.
    Raises ConfigError."""
    check_within(0, param.erase_ratio, 1, "erase_ratio", where)
    check_range(0, param.scale_min, param.scale_max, 1, "scale_min and scale_max", where)
    check_range(0.01, param.aspect_min, param.aspect_max, 100, "aspect_min and aspect_max", where)

    def draw(random: KeyedRandom, height: int, width: int) -> Erasure | None:
        if random.uniform(0, 1) >= param.erase_ratio:
            return None
        for _ in range(_TRIALS):
            area = height * width * random.uniform(param.scale_min, param.scale_max)
            aspect = random.uniform(param.aspect_min, param.aspect_max)
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                top, left = random.integer(0, height - h), random.integer(0, width - w)
                return Erasure(top, left, h, w, random.integer(0, 2**63 - 1))
        return None

    return draw
