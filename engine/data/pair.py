"""The pair rule: a mask goes through the same steps of transform_param as its picture; labels do not change.

A mask has a class for each pixel. It gets the picture's own resizing (by the nearest pixel: classes cannot be mixed),
crop and mirror, and nothing that changes values: no colours, mean or scale. Where the picture is padded with a colour,
the mask has IGNORED. Its steps are the picture's because they draw the same random numbers, those of (seed, epoch,
sample), in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine import proto
from engine.config.idle_fields import STRETCHES
from engine.data.decode import AnyImage, ImageError
from engine.data.keyed_random import KeyedRandom
from engine.data.transform import Transformer
from engine.errors import ConfigError, shape_text

IGNORED = 255


class Partner(NamedTuple):
    """What belongs to a picture: labels, a mask, or both."""

    labels: tuple[float, ...] = ()
    mask: AnyImage | None = None


# The fields of transform_param that change which pixels there are, and where; the others change their values.
_GEOMETRY = (
    "crop_size",
    "crop_h",
    "crop_w",
    "center_crop",
    "mirror",
    "pad",
    "resize_param",
    "random_resize_param",
    "random_aspect_ratio_param",
    "expand_param",
)

# Fields that move pixels in ways that are not made for masks: if given, and, in TRAIN, if switched on.
_WITHOUT_MASKS = STRETCHES
_WITHOUT_MASKS_IN_TRAIN = ("fix_crop", "multi_scale", "erase_ratio", "rand_augment_param", "mix_param")


class MaskTransformer:
    """Does for the mask of a picture what transform_param says."""

    def __init__(self, param: proto.TransformationParameter, phase: int, where: str | None = None):
        mine = proto.TransformationParameter()
        for field in _GEOMETRY:
            if field.endswith("_param") and param.HasField(field):
                getattr(mine, field).CopyFrom(getattr(param, field))
            elif param.HasField(field):
                setattr(mine, field, getattr(param, field))
        for resize in _resizes(mine):
            modes = max(1, len(resize.interp_mode))  # as many as there were: one of several is drawn
            del resize.interp_mode[:]
            resize.interp_mode.extend([proto.ResizeParameter.NEAREST] * modes)
            del resize.pad_value[:]
        self._transformer = Transformer(mine, phase, where)
        given = [field for field in _WITHOUT_MASKS if param.HasField(field)]
        if phase == proto.TRAIN:
            given += [field for field in _WITHOUT_MASKS_IN_TRAIN if param.HasField(field) and getattr(param, field)]
        self._refused = given[0] if given else ""
        self._where = where

    def require(self) -> None:
        """Raises ConfigError if transform_param has steps that a mask cannot follow. Call it if there are masks."""
        if self._refused:
            raise ConfigError(f"transform_param.{self._refused} does not go with masks: take it out", self._where)

    def shape(self, mask: AnyImage, picture: AnyImage) -> tuple[int, int, int]:
        """Returns the shape (1, h, w) that a mask becomes. Raises ImageError, ConfigError."""
        self.require()
        check_pair(mask, picture)
        return self._transformer.shape(_shifted(mask))

    def apply(self, mask: AnyImage, picture: AnyImage, random: KeyedRandom, out: np.ndarray) -> None:
        """Writes the mask to out (1, h, w). random: made with the picture's key, and not drawn from yet. Raises
        ImageError if mask and picture differ in size."""
        check_pair(mask, picture)
        self._transformer.apply(_shifted(mask), random, out)
        np.subtract(out, 1, out=out)
        out[out < 0] = IGNORED


def _shifted(mask: AnyImage) -> np.ndarray:
    """Returns (h, w, 1) uint8 with class + 1, and 0 for IGNORED, so that what is padded with 0 becomes IGNORED, too."""
    return np.asarray(mask).reshape(*_size(mask), 1) + np.uint8(1)


def check_pair(mask: AnyImage, picture: AnyImage) -> None:
    """Raises ImageError if a mask has not the size of its picture."""
    if _size(mask) != _size(picture):
        raise ImageError(
            f"expected a mask of {shape_text(_size(picture))} (h x w), as the picture; got {shape_text(_size(mask))}"
        )


def _size(image: AnyImage) -> tuple[int, int]:
    return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)


def _resizes(param: proto.TransformationParameter) -> list[proto.ResizeParameter]:
    """Returns the ResizeParameters of the resizing steps of a transform_param; makes them if they are not given."""
    found = [param.resize_param] if param.HasField("resize_param") else []
    found += [param.random_resize_param.resize_param] if param.HasField("random_resize_param") else []
    found += [param.random_aspect_ratio_param.resize_param] if param.HasField("random_aspect_ratio_param") else []
    return found
