"""From a Datum to an image: raw bytes, raw floats, or a file in one of the formats below.

The only module that opens, makes and resizes Pillow's images: what it makes stays within engine/data/limits.py.
"""

from __future__ import annotations

import io
import warnings
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from PIL import Image

from engine import proto
from engine.data.limits import MAX_PIXELS, MAX_SCANNED, MAX_SIDE, fits
from engine.errors import shape_text
from engine.files import reason

if TYPE_CHECKING:
    from engine.proto import Datum

# Either a Pillow image of mode L or RGB, or an array (h, w, c) of uint8 or float32 with any strides, channels in
# Caffe's order (B, G, R). Each form is made where it costs no copy, and turned into the other where that is needed.
AnyImage: TypeAlias = "Image.Image | np.ndarray"

COLOR, GRAY = "RGB", "L"  # Pillow's modes; as_array() turns its R, G, B around to Caffe's B, G, R

# What is decoded, by the names that such files have. Pillow knows 40 formats more; one of them starts Ghostscript.
FORMATS = {
    **{".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP"},
    **{".tif": "TIFF", ".tiff": "TIFF", ".ppm": "PPM", ".pgm": "PPM"},
}
_FORMATS = tuple(dict.fromkeys(FORMATS.values()))

# Pillow warns of odd metadata and of large pictures; those that are too large are errors here.
warnings.filterwarnings("ignore", module=r"PIL\.")


class ImageError(ValueError):
    """One image that does not fit its net. The message names neither database nor key: the caller knows them."""


class UndecodableImage(ImageError):
    """Bytes that are no image, not all of one, or one that is too large. Such images can be skipped."""


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
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_size("it has", *image.size)
        _check_scans(image, data)
        image.load()
        if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow's convert() would clip instead of scale
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        color = color or (GRAY if image.mode in ("1", "L", "LA") else COLOR)
        return image if image.mode == color else image.convert(color)
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        why = reason(error).split(" <_io.")[0]  # Pillow would name the buffer in memory
        raise UndecodableImage(f"cannot decode {len(data)} bytes as an image: {why}") from None


def decode_mask(data: bytes) -> Image.Image:
    """A class for each pixel, mode L, from an image file: its grey values, or the numbers of its palette's colours.

    Raises UndecodableImage, also for a picture in colours, and for classes above 255.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_size("it has", *image.size)
        _check_scans(image, data)
        image.load()
        if image.mode in ("P", "1"):
            return Image.fromarray(np.asarray(image).astype(np.uint8))
        if image.mode.startswith("I"):
            classes = np.asarray(image)
            if classes.max(initial=0) > 255:
                raise ValueError(f"a mask has classes 0 to 255, got {classes.max()}")
            return Image.fromarray(classes.astype(np.uint8))
        if image.mode != "L":
            raise ValueError(f"expected a mask of one channel or with a palette, got mode {image.mode}")
        return image
    except Exception as error:
        why = reason(error).split(" <_io.")[0]
        raise UndecodableImage(f"cannot decode {len(data)} bytes as a mask: {why}") from None


def resized(
    image: Image.Image,
    size: tuple[int, int],
    resample: Image.Resampling,
    box: tuple[float, float, float, float] | None = None,
) -> Image.Image:
    """Returns an image, or the part of it in `box`, in another size (width, height).

    Raises UndecodableImage: the image is too large, before or after, or in between: Pillow resizes rows first.
    """
    _check_size("it would be resized to", *size)
    _check_size("it would be resized by way of", size[0], image.height)
    _check_size("it would be resized from", image.width, 1)
    return image.resize(size, resample, box)


def canvas(mode: str, size: tuple[int, int], colour: int | tuple[int, ...]) -> Image.Image:
    """Returns an image of one colour. Raises UndecodableImage where it would be too large."""
    _check_size("it would be put on a canvas of", *size)
    return Image.new(mode, size, colour)


def _check_size(what: str, width: int, height: int) -> None:
    if not fits(width, height):
        raise UndecodableImage(
            f"{what} {width} x {height} pixels; at most {MAX_SIDE} on a side and {MAX_PIXELS} in all are supported"
        )


def _check_scans(image: Image.Image, data: bytes) -> None:
    """Of a progressive JPEG 34 bytes can be a scan, which goes over all its pixels."""
    if image.info.get("progressive"):
        content = np.frombuffer(data, np.uint8)
        scans = int(np.count_nonzero((content[:-1] == 0xFF) & (content[1:] == 0xDA)))
        if scans * image.width * image.height > MAX_SCANNED:
            raise UndecodableImage(f"it has {scans} scans of {image.width} x {image.height} pixels")


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
