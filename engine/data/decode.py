"""From a Datum to an image: raw bytes, raw floats, or anything that Pillow can decode."""

from __future__ import annotations

import io
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from PIL import Image

from engine import proto
from engine.errors import shape_text

if TYPE_CHECKING:
    from engine.proto import Datum

# Either a Pillow image of mode L or RGB, or an array (h, w, c) of uint8 or float32 with any strides, channels in
# Caffe's order (B, G, R). Each form is made where it costs no copy, and turned into the other where that is needed.
AnyImage: TypeAlias = "Image.Image | np.ndarray"

COLOR, GRAY = "RGB", "L"  # Pillow's modes; as_array() turns its R, G, B around to Caffe's B, G, R


class ImageError(ValueError):
    """One image that does not fit its net. The message names neither database nor key: the caller knows them."""


class UndecodableImage(ImageError):
    """Bytes that are no image, or not all of one."""


def parse_datum(value: bytes) -> Datum:
    """Raises UndecodableImage."""
    try:
        return proto.Datum.FromString(value)
    except DecodeError as error:
        raise UndecodableImage(f"not a Datum: {error}") from None


def decode(datum: Datum, color: str | None = None) -> AnyImage:
    """The image of a Datum. color: COLOR or GRAY to force one; None keeps grey grey and makes all else COLOR.

    Raises ImageError, UndecodableImage.
    """
    data = datum.data
    if datum.encoded:
        return decode_bytes(data, color)
    image = _raw_pixels(datum, data)
    if color is None or image.shape[2] == len(color):
        return image
    return as_pillow(image).convert(color)


def decode_bytes(data: bytes, color: str | None = None) -> Image.Image:
    """Decodes the bytes of an image file, completely. Raises UndecodableImage."""
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except Image.DecompressionBombError as error:
        raise UndecodableImage(str(error)) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        reason = str(error).split(" <_io.")[0]  # Pillow would name the buffer in memory
        raise UndecodableImage(f"cannot decode {len(data)} bytes as an image: {reason}") from None
    if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow's convert() would clip instead of scale
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    color = color or (GRAY if image.mode in ("1", "L", "LA") else COLOR)
    return image if image.mode == color else image.convert(color)


def _raw_pixels(datum: Datum, data: bytes) -> np.ndarray:
    """(h, w, c) view of the Datum's own (c, h, w) numbers."""
    shape = (datum.channels, datum.height, datum.width)
    pixels = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    expected = prod(max(0, side) for side in shape)
    if expected == 0 or pixels.size != expected:
        raise UndecodableImage(
            f"Datum of {shape_text(shape)} (channels x height x width) holds {pixels.size} numbers instead of "
            f"{expected}"
        )
    return pixels.reshape(shape).transpose(1, 2, 0)


def as_pillow(image: AnyImage) -> Image.Image:
    """Mode L or RGB. Raises ImageError for what Pillow has no mode for: floats, and 2 or more than 3 channels."""
    if not isinstance(image, np.ndarray):
        return image
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise ImageError(
            f"an image of {image.shape[2]} {image.dtype} channels cannot be resized or change its colours; "
            "that takes 1 or 3 channels of bytes"
        )
    planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in image.transpose(2, 0, 1)]
    return planes[0] if len(planes) == 1 else Image.merge(COLOR, planes[::-1])


def as_array(image: AnyImage) -> np.ndarray:
    """(h, w, c), channels in the order B, G, R."""
    if isinstance(image, np.ndarray):
        return image
    packed = image.tobytes() if image.mode == GRAY else image.tobytes("raw", "BGR")
    return np.frombuffer(packed, np.uint8).reshape(image.height, image.width, len(image.mode))
