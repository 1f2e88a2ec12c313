"""MultiLabelImageData: Reads listed pictures with several numbers each, and turns faces upright (happynear's fork)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from engine import proto
from engine.data.decode import AnyImage, ImageError, as_picture
from engine.data.keyed_random import KeyedRandom
from engine.data.pair import Partner
from engine.data.reader import Request, Shape
from engine.data.readers.image_list import ImageListReader, Listing, listing_of
from engine.data.registry import reader
from engine.errors import ConfigError

EYES_AND_MOUTH = 10  # numbers: x and y of both eyes, the nose, both corners of the mouth
_GREY = 128  # the colour of pixels that lie outside of the old picture
_WITHIN = 0.45  # how far from the middle the points of a face may be, in fractions of the size
_DRAWS = 10  # the most draws until all points are within
_SWAPPED = ((0, 2), (1, 3), (6, 8), (7, 9))  # indices of numbers to swap in a mirrored face: left becomes right


class Faces:
    """Moves, turns and scales the face in a picture by its points, which are the first of the picture's numbers.

    The point between the eyes, moved at random by up to max_random_shift, comes to the middle of the new picture. The
    picture is scaled so that twice the distance from there to the mouth is half of the new height, times a random
    scale. The points move with the picture; their new coordinates are counted from its middle. If one of them is
    further from it than 0.45 of the size, all is drawn again, up to 10 times (the fork takes the next line of its
    list).
    """

    def __init__(self, param: proto.ImageDataParameter, where: str | None):
        """Raises ConfigError for a parameter that is missing or out of its range."""
        self._param, self._points = param, param.face_point_num
        if not param.new_height:
            raise ConfigError("face_transform needs new_height and new_width", where)
        if 2 * self._points < EYES_AND_MOUTH:
            raise ConfigError(f"expected face_point_num of at least 5, got {self._points}", where)
        for name in ("max_shear_ratio", "max_aspect_ratio", "max_rotate_angle"):
            if getattr(param, name) < 0:
                raise ConfigError(f"expected {name} of at least 0, got {getattr(param, name):g}", where)
        if param.max_aspect_ratio >= 1:
            raise ConfigError(f"expected max_aspect_ratio below 1, got {param.max_aspect_ratio:g}", where)
        if not 0 < param.min_random_scale <= param.max_random_scale:
            raise ConfigError(
                "expected min_random_scale above 0 and at most max_random_scale, got "
                f"{param.min_random_scale:g} and {param.max_random_scale:g}",
                where,
            )

    def turn(self, image: AnyImage, partner: Partner, random: KeyedRandom) -> tuple[AnyImage, Partner]:
        """Returns the picture with its face turned upright, and its numbers with the moved points.

        Raises ImageError if there are too few numbers, or if eyes and mouth are in one place.
        """
        labels = partner.labels
        if len(labels) < 2 * self._points:
            raise ImageError(f"expected {2 * self._points} numbers or more, x and y of each point; got {len(labels)}")
        points = np.array(labels[: 2 * self._points]).reshape(-1, 2)
        size = np.array((self._param.new_width, self._param.new_height))
        for _ in range(_DRAWS):
            matrix, mirrored = self._draw(points, random)
            moved = points @ matrix[:, :2].T + matrix[:, 2] - size // 2
            if (np.abs(moved) <= _WITHIN * size).all():
                break
        numbers = moved.ravel().tolist()
        for left, right in _SWAPPED if mirrored else ():
            numbers[left], numbers[right] = numbers[right], numbers[left]
        return self._warped(image, matrix), partner._replace(labels=(*numbers, *labels[len(numbers) :]))

    def _draw(self, points: np.ndarray, random: KeyedRandom) -> tuple[np.ndarray, bool]:
        """Draws an affine map. Returns (its matrix (2, 3), from pixels of the picture to pixels of the new one; whether
        it mirrors). Raises ImageError if eyes and mouth are in one place."""
        param = self._param
        eyes, mouth = points[:2].mean(0), points[3:5].mean(0)
        length = 2 * math.dist(eyes, mouth)
        if length == 0:
            raise ImageError("the middle of its eyes is that of its mouth")
        shift = param.max_random_shift
        eyes = eyes + np.array((random.integer(-shift, shift), random.integer(-shift, shift)))
        shear = random.uniform(-param.max_shear_ratio, param.max_shear_ratio)
        most = int(param.max_rotate_angle)
        angle = math.radians(random.integer(-most, most))
        scale = random.uniform(param.min_random_scale, param.max_random_scale) * param.new_height / (2 * length)
        ratio = 1 + random.uniform(-param.max_aspect_ratio, param.max_aspect_ratio)
        high = 2 * scale / (1 + ratio)
        wide = ratio * high
        mirrored = param.face_mirror and random.coin()
        if mirrored:
            high = -high
        # Rounded, to be the same on every processor.
        cos, sin = (round(f(angle) * 2.0**24) / 2.0**24 for f in (math.cos, math.sin))
        linear = np.array(
            [[high * cos - shear * sin * wide, high * sin + shear * cos * wide], [-sin * wide, cos * wide]]
        )
        middle = np.array((param.new_width // 2, param.new_height // 2))
        return np.column_stack([linear, middle - linear @ eyes]), mirrored

    def _warped(self, image: AnyImage, matrix: np.ndarray) -> np.ndarray:
        """Returns the new picture (new_height, new_width, c), uint8. Each pixel is interpolated from the four around
        the place that it comes from."""
        pixels = as_picture(image).pixels()
        back = np.linalg.inv(matrix[:, :2])
        # Pillow's coordinates are those of the corners of pixels, the matrix has those of their middles.
        offset = 0.5 - back @ (matrix[:, 2] + 0.5)
        data = np.column_stack([back, offset]).ravel().tolist()
        size, mode = (self._param.new_width, self._param.new_height), Image.Transform.AFFINE
        grey = (_GREY,) * pixels.shape[2] if pixels.shape[2] > 1 else _GREY
        source = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        turned = source.transform(size, mode, data, Image.Resampling.BILINEAR, fillcolor=grey)
        return np.asarray(turned).reshape(*size[::-1], -1)


@reader("MultiLabelImageData")
class FaceListReader(ImageListReader):
    """Gives two arrays: the picture (c, h, w) and its numbers (n,)."""

    def __init__(self, message: proto.LayerParameter, request: Request):
        param = message.image_data_param
        self._faces = Faces(param, request.where) if param.face_transform else None
        super().__init__(message, request)

    def open_list(self, listing: Listing, transform: proto.TransformationParameter, request: Request) -> None:
        super().open_list(replace(listing, size=(0, 0)) if self._faces else listing, transform, request)

    def read(self, epoch: int, index: int, use: Callable[[Any, Any, KeyedRandom], None]) -> str:
        if self._faces is None:
            return super().read(epoch, index, use)
        faces = self._faces
        return super().read(
            epoch, index, lambda image, partner, random: use(*faces.turn(image, partner, random), random)
        )

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        listing_of(message.image_data_param, cls.field, where)
        raise ConfigError(
            f"layer '{message.name}': only its list, {message.image_data_param.source}, tells how many numbers a "
            "picture has",
            where,
        )
