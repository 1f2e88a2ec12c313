"""distort_param: random changes of brightness, contrast, saturation and hue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from engine.data.decode import COLOR
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_range, check_within

if TYPE_CHECKING:
    from engine.proto import DistortionParameter

_HALF_CIRCLE = 180  # hue_delta counts in steps of two degrees, as OpenCV does


def make_distort(
    param: DistortionParameter, where: str | None = None
) -> Callable[[Image.Image, KeyedRandom], Image.Image]:
    """A step that changes the colours of a picture; a grey one keeps its (lack of) hue and saturation. Raises
    ConfigError."""
    _check(param, where)

    def brightness(image: Image.Image, random: KeyedRandom) -> Image.Image:
        delta = random.uniform(-param.brightness_delta, param.brightness_delta)
        return image.point(_table(lambda value: value + delta) * len(image.mode))

    def contrast(image: Image.Image, random: KeyedRandom) -> Image.Image:
        factor = random.uniform(param.contrast_lower, param.contrast_upper)
        return image.point(_table(lambda value: value * factor) * len(image.mode))

    def saturation(image: Image.Image, random: KeyedRandom) -> Image.Image:
        factor = random.uniform(param.saturation_lower, param.saturation_upper)
        return _in_hsv(image, 1, _table(lambda value: value * factor))

    def hue(image: Image.Image, random: KeyedRandom) -> Image.Image:
        delta = random.uniform(-param.hue_delta, param.hue_delta) * 256 / _HALF_CIRCLE
        return _in_hsv(image, 0, [round(value + delta) % 256 for value in range(256)])

    probabilities = {
        brightness: param.brightness_prob,
        contrast: param.contrast_prob,
        saturation: param.saturation_prob,
        hue: param.hue_prob,
    }

    def distort(image: Image.Image, random: KeyedRandom) -> Image.Image:
        contrast_last = random.coin()
        order = (brightness, saturation, hue, contrast) if contrast_last else (brightness, contrast, saturation, hue)
        for change in order:
            if random.uniform(0, 1) < probabilities[change]:
                image = change(image, random)
        if image.mode == COLOR and random.uniform(0, 1) < param.random_order_prob:
            planes = list(image.split())
            image = Image.merge(COLOR, [planes.pop(random.integer(0, left)) for left in (2, 1, 0)])
        return image

    return distort


def _check(param: DistortionParameter, where: str | None) -> None:
    for field in ("brightness_prob", "contrast_prob", "saturation_prob", "hue_prob", "random_order_prob"):
        check_within(0, getattr(param, field), 1, f"distort_param.{field}", where)
    check_within(0, param.brightness_delta, 255, "distort_param.brightness_delta", where)
    check_within(0, param.hue_delta, _HALF_CIRCLE, "distort_param.hue_delta", where)
    for what in ("contrast", "saturation"):
        if getattr(param, f"{what}_prob") > 0:
            least, most = getattr(param, f"{what}_lower"), getattr(param, f"{what}_upper")
            check_range(0, least, most, 1000, f"distort_param.{what}_lower and {what}_upper", where)


def _table(change: Callable[[int], float]) -> list[int]:
    """For Image.point(): what becomes of each of the 256 values of a channel, held to 0..255."""
    return np.clip(np.rint([change(value) for value in range(256)]), 0, 255).astype(int).tolist()


def _in_hsv(image: Image.Image, channel: int, table: list[int]) -> Image.Image:
    """One channel of hue, saturation, value changed."""
    if image.mode != COLOR:
        return image
    planes = list(image.convert("HSV").split())
    planes[channel] = planes[channel].point(table)
    return Image.merge("HSV", planes).convert(COLOR)
