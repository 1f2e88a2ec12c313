"""rand_augment_param: draws some changes from a list, all of one magnitude (Cubuk et al. 2019, arXiv 1909.13719).

The list, and what a magnitude of 30 means, are the paper's. Factors of 1 + magnitude and 1 - magnitude are equally
likely, as are both directions of shears, shifts and turns. What comes in from beyond the edges is black.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_within
from engine.data.retouch import (
    AFFINE,
    AUTOCONTRAST,
    BITS,
    COLOUR,
    CONTRAST,
    EQUALIZE,
    LINEAR,
    SHARPNESS,
    SOLARIZE,
    Change,
    Draw,
)

if TYPE_CHECKING:
    from engine.proto import RandAugmentParameter

LARGEST = 30.0
# What the changes are at this magnitude.
_FACTOR, _SHEAR, _SHIFT, _TURN, _BITS = 0.9, 0.3, 0.45, 30.0, 4  # the shift: of a side; the turn: in degrees
MOST_OPERATIONS = 16


def _turned(degrees: float, height: int, width: int) -> Change:
    """Returns the turn of a picture about its centre."""
    angle = math.radians(degrees)
    cos, sin = (round(f(angle) * 2.0**24) / 2.0**24 for f in (math.cos, math.sin))  # the same on every processor
    x, y = width / 2, height / 2
    return AFFINE, cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


_SIGNED: list[Callable[[float, int, int], Change]] = [
    lambda m, height, width: (LINEAR, 1 + _FACTOR * m, 0),
    lambda m, height, width: (CONTRAST, 1 + _FACTOR * m),
    lambda m, height, width: (COLOUR, 1 + _FACTOR * m),
    lambda m, height, width: (SHARPNESS, 1 + _FACTOR * m),
    lambda m, height, width: (AFFINE, 1, _SHEAR * m, -_SHEAR * m * height / 2, 0, 1, 0),
    lambda m, height, width: (AFFINE, 1, 0, 0, _SHEAR * m, 1, -_SHEAR * m * width / 2),
    lambda m, height, width: (AFFINE, 1, 0, round(_SHIFT * m * width), 0, 1, 0),
    lambda m, height, width: (AFFINE, 1, 0, 0, 0, 1, round(_SHIFT * m * height)),
    lambda m, height, width: _turned(_TURN * m, height, width),
]
_UNSIGNED: list[Callable[[float], Change | None]] = [
    lambda m: None,
    lambda m: (AUTOCONTRAST,),
    lambda m: (EQUALIZE,),
    lambda m: (SOLARIZE, 256 * (1 - m)),
    lambda m: (BITS, 8 - round(_BITS * m)),
]


def make_rand_augment(param: RandAugmentParameter, where: str | None) -> Draw:
    """Returns a function that draws `operations` changes, each any of the list. Raises ConfigError."""
    check_within(1, param.operations, MOST_OPERATIONS, "rand_augment_param.operations", where)
    check_within(0, param.magnitude, LARGEST, "rand_augment_param.magnitude", where)
    magnitude = param.magnitude / LARGEST

    def draw_one(random: KeyedRandom, height: int, width: int) -> Change | None:
        which, sign = random.integer(0, len(_SIGNED) + len(_UNSIGNED) - 1), 1 if random.coin() else -1
        if which < len(_SIGNED):
            return _SIGNED[which](sign * magnitude, height, width)
        return _UNSIGNED[which - len(_SIGNED)](magnitude)

    def draw(random: KeyedRandom, height: int, width: int) -> list[Change]:
        drawn = (draw_one(random, height, width) for _ in range(param.operations))
        return [change for change in drawn if change]

    return draw
