"""Changes the size of an image before it is cropped: resize_param, random_resize_param, random_aspect_ratio_param, pad,
and the fields of NVIDIA's and yjxiong's forks.

Each make_ function checks its message once and returns a step: (image, random) -> image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.data.decode import BOX, CUBIC, LANCZOS, LINEAR, NEAREST, Picture, as_picture
from engine.data.keyed_random import KeyedRandom
from engine.data.limits import MAX_SIDE, MAX_TRIALS, check_size, check_within
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.proto import (
        RandomAspectRatioParameter,
        RandomResizeParameter,
        ResizeParameter,
        TransformationParameter,
    )

Step = Callable[[Picture, KeyedRandom], Picture]

_Resize = proto.ResizeParameter
# All but NEAREST widen when an image shrinks, and so do not alias.
_FILTERS = {
    _Resize.LINEAR: LINEAR,
    _Resize.AREA: BOX,
    _Resize.NEAREST: NEAREST,
    _Resize.CUBIC: CUBIC,
    _Resize.LANCZOS4: LANCZOS,
}


def _filter_choice(param: ResizeParameter) -> Callable[[KeyedRandom], int]:
    """Returns a function that draws one of the interp_modes; LINEAR, as in OpenCV, if there is none."""
    filters = [_FILTERS[mode] for mode in param.interp_mode] or [LINEAR]
    if len(filters) == 1:
        return lambda random: filters[0]
    return lambda random: filters[random.integer(0, len(filters) - 1)]


def _resize_shorter(image: Picture, size: int, resample: int) -> Picture:
    shorter = min(image.size)
    if shorter == size:
        return image
    width, height = (side * size // shorter for side in image.size)
    return image.resized((width, height), resample)


def make_resize(param: ResizeParameter, where: str | None) -> Step:
    """Returns the step of resize_param. Raises ConfigError."""
    height, width = param.height, param.width
    if not (height and width):
        raise ConfigError(f"resize_param needs height and width; got {height} x {width}", where)
    check_size(height, width, "resize_param", where)
    check_within(0, param.prob, 1, "resize_param.prob", where)
    choose_filter = _filter_choice(param)
    if param.resize_mode == _Resize.FIT_LARGE_SIZE_AND_PAD:
        fit = _make_fit_and_pad(param, where)
    elif param.resize_mode == _Resize.FIT_SMALL_SIZE:

        def fit(image: Picture, resample: int) -> Picture:
            """Resizes to the smallest size of the same aspect ratio that covers height x width."""
            scale = max(height / image.height, width / image.width)
            size = (max(width, int(image.width * scale)), max(height, int(image.height * scale)))
            return image.resized(size, resample)
    else:

        def fit(image: Picture, resample: int) -> Picture:
            return image.resized((width, height), resample)

    def resize(image: Picture, random: KeyedRandom) -> Picture:
        if param.prob < 1 and random.uniform(0, 1) >= param.prob:
            return image
        return fit(image, choose_filter(random))

    return resize


def _make_fit_and_pad(param: ResizeParameter, where: str | None) -> Callable[..., Picture]:
    """Returns a function that resizes an image to the largest size of the same aspect ratio that fits into height x
    width, and pads it to that size on all sides. Raises ConfigError."""
    height, width = param.height, param.width
    for value in param.pad_value:
        check_within(0, value, 255, "resize_param.pad_value", where)
    values = [round(value) for value in param.pad_value] or [0]
    if len(values) not in (1, 3):
        raise ConfigError(f"resize_param needs 1 or 3 pad_value fields; got {len(values)}", where)
    modes = {_Resize.CONSTANT: None, _Resize.MIRRORED: "reflect", _Resize.REPEAT_NEAREST: "edge"}
    mode = modes[param.pad_mode]

    def fit_and_pad(image: Picture, resample: int) -> Picture:
        scale = min(height / image.height, width / image.width)
        inner_w, inner_h = min(width, round(image.width * scale)), min(height, round(image.height * scale))
        pixels = image.resized((max(1, inner_w), max(1, inner_h)), resample).pixels()
        above, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
        below, right = height - pixels.shape[0] - above, width - pixels.shape[1] - left
        if mode:
            return as_picture(np.pad(pixels, ((above, below), (left, right), (0, 0)), mode=mode))
        padded = np.empty((height, width, pixels.shape[2]), np.uint8)
        padded[:] = values if pixels.shape[2] == len(values) else values[0]
        padded[above : height - below, left : width - right] = pixels
        return as_picture(padded)

    return fit_and_pad


def make_random_resize(param: RandomResizeParameter, where: str | None) -> Step:
    """Returns the step of random_resize_param: the shorter side becomes a random size in [min_size, max_size]. By
    default min_size is the picture's shorter side, or max_size if that is less, and max_size is the picture's longer
    side, or min_size if that is more. Raises ConfigError."""
    low, high = param.min_size, param.max_size
    if max(low, high) > MAX_SIDE or 0 < high < low:
        raise ConfigError(f"random_resize_param needs min_size <= max_size <= {MAX_SIDE}; got {low} and {high}", where)
    choose_filter = _filter_choice(param.resize_param)

    def random_resize(image: Picture, random: KeyedRandom) -> Picture:
        shorter, longer = sorted(image.size)
        least = low or min(shorter, high or shorter)
        most = high or max(longer, least)
        return _resize_shorter(image, random.integer(least, most), choose_filter(random))

    return random_resize


def make_random_aspect_ratio(param: RandomAspectRatioParameter, crop_h: int, crop_w: int, where: str | None) -> Step:
    """Returns the step of random_aspect_ratio_param: it cuts out a part of random area and aspect ratio, and resizes it
    to the crop. If no trial fits into the image, the image's shorter side is resized to the crop's longer one. Raises
    ConfigError."""
    if not (crop_h and crop_w):
        raise ConfigError("random_aspect_ratio_param needs crop_size", where)
    check_size(crop_h, crop_w, "crop_size", where)
    check_within(0, param.max_attempt, MAX_TRIALS, "random_aspect_ratio_param.max_attempt", where)
    if not 0 < param.min_area_ratio <= param.max_area_ratio < math.inf:
        raise ConfigError(
            "random_aspect_ratio_param needs 0 < min_area_ratio <= max_area_ratio; "
            f"got {param.min_area_ratio:g} and {param.max_area_ratio:g}",
            where,
        )
    change = param.aspect_ratio_change
    check_within(0.01, change, 100, "random_aspect_ratio_param.aspect_ratio_change", where)
    narrow, wide = sorted((change, 1 / change))
    choose_filter = _filter_choice(param.resize_param)

    def random_aspect_ratio(image: Picture, random: KeyedRandom) -> Picture:
        resample = choose_filter(random)
        for _ in range(param.max_attempt):
            area = image.width * image.height * random.uniform(param.min_area_ratio, param.max_area_ratio)
            stretch = random.uniform(narrow, wide)
            height, width = int(math.sqrt(area) * stretch), int(math.sqrt(area) / stretch)
            if random.coin():
                height, width = width, height
            if 0 < height <= image.height and 0 < width <= image.width:
                top = random.integer(0, image.height - height)
                left = random.integer(0, image.width - width)
                return image.resized((crop_w, crop_h), resample, (left, top, left + width, top + height))
        return _resize_shorter(image, max(crop_h, crop_w), resample)

    return random_aspect_ratio


def padded(pixels: np.ndarray, pad: int) -> np.ndarray:
    """Returns pixels (h, w, c) with `pad` black ones on all four sides, as transform_param.pad asks."""
    height, width, channels = pixels.shape
    result = np.zeros((height + 2 * pad, width + 2 * pad, channels), pixels.dtype)
    result[pad : pad + height, pad : pad + width] = pixels
    return result


_Transform = proto.TransformationParameter
_ALGORITHMS = {
    _Transform.INTER_NEAREST: NEAREST,
    _Transform.INTER_LINEAR: LINEAR,
    _Transform.INTER_CUBIC: CUBIC,
    _Transform.INTER_AREA: BOX,
}


def make_stretch(param: TransformationParameter, crop_h: int, crop_w: int, where: str | None) -> Step:
    """Returns the step of NVIDIA's fields. The shorter side becomes a random length of img_rand_resize_lower to _upper,
    or stays. The longer side becomes that length times a random ratio of rand_resize_ratio_lower to _upper, or keeps
    the aspect ratio. Then each side is multiplied by a random number of its own (vertical_stretch, horizontal_stretch).
    No side becomes less than the crop's, nor, without allow_upscale, more than it was. Raises ConfigError."""
    low, high = param.img_rand_resize_lower, param.img_rand_resize_upper
    if not 0 <= low <= high <= MAX_SIDE or (high and not low):
        raise ConfigError(
            f"img_rand_resize_lower and _upper: expected 0 < lower <= upper <= {MAX_SIDE}; got {low} and {high}", where
        )
    for name in ("rand_resize_ratio", "vertical_stretch", "horizontal_stretch"):
        least, most = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
        if not 0 <= least <= most <= 100:
            raise ConfigError(f"{name}_lower and _upper: expected 0 <= lower <= upper; got {least:g}, {most:g}", where)
    ratios = (param.rand_resize_ratio_lower, param.rand_resize_ratio_upper)
    down, up = _ALGORITHMS[param.interpolation_algo_down], _ALGORITHMS[param.interpolation_algo_up]

    def stretch(image: Picture, random: KeyedRandom) -> Picture:
        shorter = random.integer(low, high) if low else min(image.size)
        width, height = (side * shorter / min(image.size) for side in image.size)
        if ratios[0] >= 1 and ratios[1] > 1:
            longer = shorter * random.uniform(*ratios)
            wide = random.coin() if width == height else width > height
            width, height = (longer, float(shorter)) if wide else (float(shorter), longer)
        height *= random.uniform(param.vertical_stretch_lower, param.vertical_stretch_upper) or 1
        width *= random.uniform(param.horizontal_stretch_lower, param.horizontal_stretch_upper) or 1
        size = max(crop_w, round(width)), max(crop_h, round(height))
        if not param.allow_upscale:
            size = min(size[0], image.width), min(size[1], image.height)
        if size == image.size:
            return image
        shrinks = size[0] <= image.width and size[1] <= image.height
        return image.resized(size, down if shrinks else up)

    return stretch


_RATIOS = (1.0, 0.875, 0.75, 0.66)  # of a crop to the shorter side, without scale_ratios


def make_fixed_crops(param: TransformationParameter, crop_h: int, crop_w: int, where: str | None) -> Step:
    """Returns the step of yjxiong's fields, for TRAIN: it cuts a part out of an image and resizes it to the crop.

    With multi_scale, the sides of the part are the image's shorter side times two of scale_ratios, which are at most
    max_distort apart in their list; else they are the crop's. With fix_crop, the part lies at a corner or in the
    middle, with more_fix_crop also at the middles of the sides and of the quarters; else it lies anywhere. Raises
    ConfigError."""
    if not (crop_h and crop_w):
        raise ConfigError("fix_crop and multi_scale need crop_size", where)
    ratios = list(param.scale_ratios) or _RATIOS
    for ratio in ratios:
        check_within(0.01, ratio, 1, "scale_ratios", where)
    pairs = [
        (ratios[i], ratios[j])
        for i in range(len(ratios))
        for j in range(len(ratios))
        if abs(i - j) <= max(0, param.max_distort)
    ]
    places = [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2)]
    if param.more_fix_crop:
        places += [(0, 2), (4, 2), (2, 0), (2, 4), (1, 1), (1, 3), (3, 1), (3, 3)]

    def fixed_crop(image: Picture, random: KeyedRandom) -> Picture:
        height, width = crop_h, crop_w
        if param.multi_scale:
            ratio_h, ratio_w = pairs[random.integer(0, len(pairs) - 1)]
            height, width = (int(min(image.size) * ratio) for ratio in (ratio_h, ratio_w))
            height = crop_h if abs(height - crop_h) < 3 else max(1, height)  # nearly the crop's: as in the fork
            width = crop_w if abs(width - crop_w) < 3 else max(1, width)
        spare_h, spare_w = image.height - height, image.width - width
        if spare_h < 0 or spare_w < 0:
            return image  # it is too small; the crop raises the error
        if param.fix_crop:
            down, right = places[random.integer(0, len(places) - 1)]
            top, left = spare_h // 4 * down, spare_w // 4 * right
        else:
            top, left = random.integer(0, spare_h), random.integer(0, spare_w)
        box = (left, top, left + width, top + height)
        if (height, width) == (crop_h, crop_w):
            return image.resized((crop_w, crop_h), NEAREST, box)  # of the crop's size: NEAREST keeps the pixels
        return image.resized((crop_w, crop_h), LINEAR, box)

    return fixed_crop
