"""distort_param: random changes of brightness, contrast, saturation and hue (SSD's)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.data.keyed_random import KeyedRandom
from engine.data.limits import check_range, check_within
from engine.data.retouch import HUE, LINEAR, ORDER, SATURATION, Change, Draw

if TYPE_CHECKING:
    from engine.proto import DistortionParameter

_HALF_CIRCLE = 180  # hue_delta counts in steps of two degrees, as OpenCV does


def make_distort(param: DistortionParameter, where: str | None = None) -> Draw:
    """Returns a function that draws the changes of a picture's colours; a grey picture stays grey. Raises
    ConfigError."""
    _check(param, where)

    def brightness(random: KeyedRandom) -> Change:
        return LINEAR, 1, random.uniform(-param.brightness_delta, param.brightness_delta)

    def contrast(random: KeyedRandom) -> Change:
        return LINEAR, random.uniform(param.contrast_lower, param.contrast_upper), 0

    def saturation(random: KeyedRandom) -> Change:
        return SATURATION, random.uniform(param.saturation_lower, param.saturation_upper)

    def hue(random: KeyedRandom) -> Change:
        return HUE, random.uniform(-param.hue_delta, param.hue_delta) * 360 / _HALF_CIRCLE

    probabilities = {
        brightness: param.brightness_prob,
        contrast: param.contrast_prob,
        saturation: param.saturation_prob,
        hue: param.hue_prob,
    }

    def draw(random: KeyedRandom, height: int, width: int) -> list[Change]:
        contrast_last = random.coin()
        order = (brightness, saturation, hue, contrast) if contrast_last else (brightness, contrast, saturation, hue)
        changes = [change(random) for change in order if random.uniform(0, 1) < probabilities[change]]
        if random.uniform(0, 1) < param.random_order_prob:
            channels = [0, 1, 2]
            changes.append((ORDER, *(channels.pop(random.integer(0, left)) for left in (2, 1, 0))))
        return changes

    return draw


def _check(param: DistortionParameter, where: str | None) -> None:
    for field in ("brightness_prob", "contrast_prob", "saturation_prob", "hue_prob", "random_order_prob"):
        check_within(0, getattr(param, field), 1, f"distort_param.{field}", where)
    check_within(0, param.brightness_delta, 255, "distort_param.brightness_delta", where)
    check_within(0, param.hue_delta, _HALF_CIRCLE, "distort_param.hue_delta", where)
    for what in ("contrast", "saturation"):
        if getattr(param, f"{what}_prob") > 0:
            least, most = getattr(param, f"{what}_lower"), getattr(param, f"{what}_upper")
            check_range(0, least, most, 1000, f"distort_param.{what}_lower and {what}_upper", where)
