"""Random erasing (Zhong et al. 2017, arXiv 1708.04896): a rectangle of a picture becomes noise. happynear's fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_range, check_within

if TYPE_CHECKING:
    from engine.proto import TransformationParameter

Window = tuple[int, int, int, int]  # top, left, height, width
_TRIALS = 100


def make_erase(
    param: TransformationParameter, where: str | None
) -> Callable[[np.ndarray, Window, KeyedRandom], np.ndarray]:
    """Returns what erases within a window of an image (h, w, c), with probability erase_ratio: scale_min to scale_max
    of the window's area, of an aspect ratio of aspect_min to aspect_max. Raises ConfigError."""
    check_within(0, param.erase_ratio, 1, "erase_ratio", where)
    check_range(0, param.scale_min, param.scale_max, 1, "scale_min and scale_max", where)
    check_range(0.01, param.aspect_min, param.aspect_max, 100, "aspect_min and aspect_max", where)

    def erase(pixels: np.ndarray, window: Window, random: KeyedRandom) -> np.ndarray:
        if random.uniform(0, 1) >= param.erase_ratio:
            return pixels
        top, left, height, width = window
        for _ in range(_TRIALS):
            area = height * width * random.uniform(param.scale_min, param.scale_max)
            aspect = random.uniform(param.aspect_min, param.aspect_max)
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                y, x = top + random.integer(0, height - h), left + random.integer(0, width - w)
                noise = np.random.Generator(np.random.Philox(key=random.integer(0, 2**63 - 1)))
                erased = pixels.copy()
                erased[y : y + h, x : x + w] = noise.integers(0, 256, (h, w, pixels.shape[2]), np.uint8)
                return erased
        return pixels

    return erase
