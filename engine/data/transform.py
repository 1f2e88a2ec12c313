"""transform_param: turns an image into the floats that a net reads.

The steps, in this order: expansion; resize or aspect-ratio augmentation; pad; crop (random in TRAIN, centre in TEST);
changes of the crop's colours and pixels, and random erasing; mirror (a random half in TRAIN); subtract the mean;
multiply by scale. Decoding a JPEG, the last resize and what follows it are one pass over its rows in C++
(csrc/jpeg.cpp, csrc/kernels/picture.cpp). If nothing is decoded or resized, the crop and what follows it are one pass
(csrc/kernels/image.cpp). If a crop is changed, it is bytes first (csrc/kernels/retouch.cpp), and then floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine import proto
from engine.config.idle_fields import STRETCHES
from engine.data.decode import COLOR, GRAY, AnyImage, ImageError, Picture, as_array, as_picture
from engine.data.distort import make_distort
from engine.data.erase import Erasure, make_erase
from engine.data.geometry import (
    make_fixed_crops,
    make_random_aspect_ratio,
    make_random_resize,
    make_resize,
    make_stretch,
    padded,
)
from engine.data.keyed_random import KeyedRandom
from engine.data.lighting import make_lighting
from engine.data.limits import check_within
from engine.data.mean import read_mean
from engine.data.noise import make_noise
from engine.data.patches import expand_picture
from engine.data.rand_augment import make_rand_augment
from engine.data.retouch import Change, Draw, retouch
from engine.errors import ConfigError, shape_text

if TYPE_CHECKING:
    from engine.proto import TransformationParameter

# Fields that only some types of layers read, which pass them as `handled`, or that none reads.
_ELSEWHERE = {
    "is_flow": "read by VideoData only",
    "scale_factors": "read by ImageSegData only",
    "mix_param": "read by Data, ImageData and MultiLabelImageData only",
    "flow": "not supported",
    "bgr2rgb": "not supported",
}
MAX_PAD = 1024  # pixels on a side


def crop_shape(param: TransformationParameter, where: str | None = None) -> tuple[int, int]:
    """Returns (height, width) of the crop, (0, 0) if there is none. Raises ConfigError."""
    height, width = param.crop_h or param.crop_size, param.crop_w or param.crop_size
    if bool(height) != bool(width):
        raise ConfigError(f"crop_h and crop_w need each other; got {height} and {width}", where)
    return height, width


def refuse_elsewhere(
    param: TransformationParameter, phase: int, where: str | None = None, handled: Sequence[str] = ()
) -> None:
    """Raises ConfigError for fields that this type of layer does not read, though others may. handled: the fields that
    it reads."""
    given = [field.name for field, _ in param.ListFields()]
    for field, why in _ELSEWHERE.items():
        idle = field in handled or (field == "mix_param" and phase != proto.TRAIN)
        if not idle and field in given and getattr(param, field):
            raise ConfigError(f"transform_param.{field} is {why}", where)


def forced_color(param: TransformationParameter, where: str | None = None) -> str | None:
    """Returns the mode that force_color or force_gray asks for, COLOR, GRAY or None. Raises ConfigError."""
    if param.force_color and param.force_gray:
        raise ConfigError("force_color and force_gray exclude each other", where)
    return COLOR if param.force_color else GRAY if param.force_gray else None


class Cut(NamedTuple):
    """What the crop and the mirror took of a resized image. patch: x1, y1, x2, y2 in fractions of its sides."""

    patch: tuple[float, float, float, float]
    mirrored: bool


class Transformer:
    """Does what a transform_param says, in one phase. It has no state: several threads may call apply().

    color: what images must be decoded to, COLOR or GRAY; None leaves grey grey.
    Raises ConfigError for a transform_param that cannot be used, DataError for a mean_file that cannot be read.
    """

    def __init__(
        self, param: TransformationParameter, phase: int, where: str | None = None, handled: Sequence[str] = ()
    ):
        """handled: fields that the caller applies itself, before."""
        from engine.host._core import transform_image

        self._random = phase == proto.TRAIN
        refuse_elsewhere(param, phase, where, handled)
        self._transform_image = transform_image
        self._mirror = param.mirror and self._random
        self._scale = param.scale
        self._pad = self._read_pad(param, where)
        self._crop = crop_shape(param, where)
        self.color = forced_color(param, where)
        self._mean_file = param.mean_file
        self._mean = self._read_mean(param, where)
        self._mean_hint = "; make the file of such pictures with `engine compute_image_mean`, or give mean_value"
        self._steps = []
        if param.HasField("expand_param") and "expand_param" not in handled:
            self._steps.append(expand_picture(param, where))
        if param.HasField("resize_param"):
            self._steps.append(make_resize(param.resize_param, where))
        if param.HasField("random_resize_param"):
            self._steps.append(make_random_resize(param.random_resize_param, where))
        if param.HasField("random_aspect_ratio_param"):
            self._steps.append(make_random_aspect_ratio(param.random_aspect_ratio_param, *self._crop, where))
        if any(param.HasField(field) for field in STRETCHES):
            self._steps.append(make_stretch(param, *self._crop, where))
        if self._random and (param.fix_crop or param.multi_scale):
            self._steps.append(make_fixed_crops(param, *self._crop, where))
        self._draws = self._make_draws(param, where, handled)
        self._erase = make_erase(param, where) if self._random and param.erase_ratio else None
        lit = self._random and param.HasField("lighting_param")
        self._light = make_lighting(param.lighting_param, where) if lit else None
        self._crops_anywhere = self._random and not param.center_crop

    def _make_draws(self, param: TransformationParameter, where: str | None, handled: Sequence[str]) -> list[Draw]:
        """Returns the functions that draw changes of a crop's bytes, in the order in which they are made."""
        draws: list[Draw] = []
        if param.HasField("distort_param") and "distort_param" not in handled:
            draws.append(make_distort(param.distort_param, where))
        if param.HasField("noise_param"):
            draws.append(make_noise(param.noise_param, where))
        if self._random and param.HasField("rand_augment_param"):
            draws.append(make_rand_augment(param.rand_augment_param, where))
        return draws

    @staticmethod
    def _read_pad(param: TransformationParameter, where: str | None) -> int:
        """Returns the number of pixels that are put around a picture."""
        check_within(0, param.pad, MAX_PAD, "transform_param.pad", where)
        if param.pad and param.mean_file:
            raise ConfigError("pad and mean_file exclude each other: the mean has no border; give mean_value", where)
        return param.pad

    @staticmethod
    def _read_mean(param: TransformationParameter, where: str | None) -> np.ndarray | None:
        """Returns the mean, float32: (values,) of mean_value, (c, h, w) of mean_file, or None."""
        if param.mean_file and param.mean_value:
            raise ConfigError("mean_file and mean_value exclude each other", where)
        if param.mean_file:
            return read_mean(param.mean_file, where)
        return np.array(param.mean_value, np.float32) if param.mean_value else None

    def repeat_mean(self, channels: int, frames: int, where: str | None) -> None:
        """Turns the mean of a frame into that of a clip, whose frames' channels are one after the other. Raises
        ConfigError unless there is 1 mean_value or one for each of `channels`."""
        self._mean_hint = ""  # compute_image_mean makes means of pictures, not of clips
        if self._mean is None:
            return
        if self._mean.ndim == 1 and self._mean.size not in (1, channels):
            wanted = f"1 or {channels}" if channels > 1 else "1"
            raise ConfigError(
                f"expected {wanted} mean_value, one for each channel of a frame, got {self._mean.size}", where
            )
        if len(self._mean) == channels:
            self._mean = np.concatenate([self._mean] * frames)

    def _prepare(self, image: AnyImage, random: KeyedRandom) -> Picture | np.ndarray:
        """Does the steps before the crop. Returns pixels (h, w, c), or a Picture that will make the crop alone."""
        if self._steps:
            image = self._stepped(image, random)
        if self._pad:
            return padded(as_array(image), self._pad)
        return image if isinstance(image, Picture) and image.pending else as_array(image)

    def _stepped(self, image: AnyImage, random: KeyedRandom) -> AnyImage:
        """Does self._steps. All frames of a stack, which are in colours or of one channel, draw the same numbers."""
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2] not in (1, 3):
            *frames, last = np.split(image, image.shape[2] // (1 if image.shape[2] % 3 else 3), axis=2)
            stepped = [self._stepped(frame, random.copy()) for frame in frames]
            return np.concatenate([as_array(frame) for frame in (*stepped, self._stepped(last, random))], axis=2)
        for step in self._steps:
            image = step(as_picture(image), random)
        return image

    def shape(self, image: AnyImage) -> tuple[int, int, int]:
        """Returns the shape (c, h, w) that this image becomes; with a crop, or if images have one size, all others
        become it, too. Raises ImageError."""
        size = _size(
            as_array(self._prepare(image, KeyedRandom(0, 0, 0)))
        )  # decoded, because this item must be a good one
        self._mean_for(size)
        return self._cropped_shape(size)

    def apply(self, image: AnyImage, random: KeyedRandom, out: np.ndarray) -> Cut:
        """Writes the transformed image to out (c, h, w) float32, C-contiguous, and returns how it was cut. Raises
        ImageError."""
        prepared = self._prepare(image, random)
        size = _size(prepared)
        shape = self._cropped_shape(size)
        if shape != out.shape:
            hint = "set force_color or force_gray" if shape[1:] == out.shape[1:] else "set crop_size or resize_param"
            raise ImageError(
                f"expected an image of {shape_text(out.shape)}, like the first one; got {shape_text(shape)}; {hint}"
            )
        mean = self._mean_for(size)
        _, height, width = size
        spare_h, spare_w = height - shape[1], width - shape[2]
        if self._crops_anywhere:
            top, left = random.integer(0, spare_h), random.integer(0, spare_w)
        else:
            top, left = spare_h // 2, spare_w // 2
        mirror = self._mirror and random.coin()
        # These draw last, because a mask draws the same numbers as its picture, but none for these.
        changes = [change for draw in self._draws for change in draw(random, *shape[1:])]
        erasure = self._erase(random, *shape[1:]) if self._erase else None
        mean = self._lit(mean, shape[0], random)
        if changes or erasure:
            prepared = _changed_crop(prepared, (top, left, *shape[1:]), changes, erasure)
            if mean is not None and mean.ndim == 3:
                mean = mean[:, top : top + shape[1], left : left + shape[2]]
            self._transform_image(prepared, 0, 0, shape[1], shape[2], mirror, mean, self._scale, out)
        elif isinstance(prepared, Picture):
            prepared.write((top, left, shape[1], shape[2], mirror), mean, self._scale, out)
        else:
            self._transform_image(prepared, top, left, shape[1], shape[2], mirror, mean, self._scale, out)
        patch = (left / width, top / height, (left + shape[2]) / width, (top + shape[1]) / height)
        return Cut(patch, bool(mirror))

    def _lit(self, mean: np.ndarray | None, channels: int, random: KeyedRandom) -> np.ndarray | None:
        """Returns the mean, less what lighting_param adds to the colours of this picture. Raises ImageError."""
        if self._light is None:
            return mean
        added = self._light(random)
        if channels not in (1, len(added)):
            raise ImageError(f"lighting_param moves the colours of 1 or 3 channels, got {channels}; take it out")
        if channels == 1:
            return mean
        if mean is None:
            return -added
        return mean - (added if mean.ndim == 1 else added[:, None, None])

    def _cropped_shape(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Returns the shape (c, h, w) after the crop of an image of `size`. Raises ImageError if the image is too small
        for the crop."""
        channels, height, width = size
        crop_h, crop_w = self._crop[0] or height, self._crop[1] or width
        if crop_h > height or crop_w > width:
            raise ImageError(
                f"image of {shape_text((channels, height, width))} is smaller than the crop of {crop_h} x {crop_w}; "
                "add a resize_param or make crop_size smaller"
            )
        return channels, crop_h, crop_w

    def _mean_for(self, size: tuple[int, int, int]) -> np.ndarray | None:
        """Returns the mean for an image of `size` (c, h, w): None, (c,) or (c, h, w). Raises ImageError if it does not
        fit."""
        if self._mean is None:
            return None
        channels, height, width = size
        if self._mean.ndim == 3:
            if self._mean.shape != (channels, height, width):
                raise ImageError(
                    f"expected an image of {shape_text(self._mean.shape)}, as mean_file {self._mean_file}; got "
                    f"{shape_text((channels, height, width))}{self._mean_hint}"
                )
            return self._mean
        if self._mean.size == 1:
            return np.repeat(self._mean, channels)
        if self._mean.size != channels:
            raise ImageError(f"{self._mean.size} mean_value fields for an image of {channels} channels")
        return self._mean


def _changed_crop(
    image: Picture | np.ndarray,
    window: tuple[int, int, int, int],
    changes: Sequence[Change],
    erasure: Erasure | None,
) -> np.ndarray:
    """Returns the changed pixels (h, w, c) of a window (top, left, height, width) of an image. Raises ImageError,
    UndecodableImage."""
    top, left, height, width = window
    if isinstance(image, Picture):
        pixels = np.empty((height, width, len(image.mode)), np.uint8)
        image.write((*window, False), None, 1.0, pixels)
    else:
        pixels = np.array(image[top : top + height, left : left + width], order="C")
    if changes:
        retouch(pixels, changes)
    if erasure:
        erasure.apply(pixels)
    return pixels


def _size(image: Picture | np.ndarray) -> tuple[int, int, int]:
    """Returns (c, h, w) of an image."""
    if isinstance(image, Picture):
        return len(image.mode), image.height, image.width
    height, width, channels = image.shape
    return channels, height, width
