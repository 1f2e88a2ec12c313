"""noise_param: makes pictures worse than they are, by SSD's changes in SSD's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_within
from engine.data.retouch import (
    BLUR,
    COLOUR,
    DOTS,
    EQUALIZE_LIGHT,
    ERODE,
    HSV,
    JPEG,
    LINEAR,
    STEPS,
    Change,
    Draw,
)
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.proto import NoiseParameter

_STEP = 64  # of posterize, as in SSD
_UNSUPPORTED = ("clahe", "convert_to_lab")
_FIRST_OF_LAYERS = 1300  # the number of the first field of Noise layers, which have the same message


def make_noise(param: NoiseParameter, where: str | None) -> Draw:
    """Returns a function that draws, with probability `prob` (1 if it is not given), all changes that are asked for,
    and else none. Raises ConfigError."""
    for field in _UNSUPPORTED:
        if getattr(param, field):
            raise ConfigError(f"noise_param.{field} is not supported", where)
    for field, _ in param.ListFields():
        if field.number >= _FIRST_OF_LAYERS:
            raise ConfigError(f"noise_param.{field.name} belongs to a layer, not to transform_param", where)
    check_within(0, param.prob, 1, "noise_param.prob", where)
    check_within(-1, param.jpeg, 100, "noise_param.jpeg", where)
    spots = param.saltpepper_param
    check_within(0, spots.fraction, 1, "saltpepper_param.fraction", where)
    for value in spots.value:
        check_within(0, value, 255, "saltpepper_param.value", where)
    if len(spots.value) not in (0, 1, 3):
        raise ConfigError(f"saltpepper_param needs no, 1 or 3 value fields; got {len(spots.value)}", where)
    probability = param.prob if param.HasField("prob") else 1.0
    asked: list[tuple[bool, Change]] = [
        (param.decolorize, (COLOUR, 0)),
        (param.gauss_blur, (BLUR,)),
        (param.hist_eq, (EQUALIZE_LIGHT,)),
        (param.jpeg > 0, (JPEG, max(1, int(param.jpeg)) if param.jpeg > 0 else 0)),
        (param.erode, (ERODE,)),
        (param.posterize, (STEPS, _STEP)),
        (param.inverse, (LINEAR, -1, 255)),
    ]
    before = [change for wanted, change in asked if wanted]
    after: list[Change] = [(HSV,)] if param.convert_to_hsv else []
    values = (list(spots.value) * 3)[:3] if len(spots.value) != 3 else list(spots.value)

    def draw(random: KeyedRandom, height: int, width: int) -> list[Change]:
        if random.uniform(0, 1) >= probability:
            return []
        dots: list[Change] = []
        if param.saltpepper:
            dots = [(DOTS, spots.fraction, random.integer(0, 2**52), *(values or [-1.0, 0.0, 0.0]))]
        return [*before, *dots, *after]

    return draw
