"""Turns a Datum into an image: from raw bytes, raw floats, or a file in one of the formats below.

JPEGs are decoded in C++, by the library that Pillow brings along, as far as they are needed. Pillow decodes the rest:
other formats and damaged files. This is the only module that opens, makes and resizes images, so that all images stay
within engine/data/limits.py.
"""

from __future__ import annotations

import functools
import io
import re
import time
import warnings
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from PIL import Image, ImageFile, _imaging

from engine import proto
from engine.data.limits import MAX_PIXELS, MAX_SCANNED, MAX_SIDE, fits
from engine.errors import shape_text
from engine.files import reason

if TYPE_CHECKING:
    from engine.proto import Datum

# Either a Picture, or a Pillow image of mode L or RGB, or an array (h, w, c) of uint8 or float32 with any strides,
# channels in Caffe's order (B, G, R). An image keeps the form that costs no copy until another one is needed.
AnyImage: TypeAlias = "Picture | Image.Image | np.ndarray"

COLOR, GRAY = "RGB", "L"  # Pillow's modes; as_array() turns its R, G, B around to Caffe's B, G, R

# How a picture is resized: as Pillow does it, which widens filters where a picture shrinks. Numbers of Filter in
# csrc/kernels/resize_rows.h.
NEAREST, BOX, LINEAR, CUBIC, LANCZOS = range(5)

# Extension -> format of the files that are decoded. Pillow knows 40 formats more; one of them starts Ghostscript.
FORMATS = {
    **{".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP"},
    **{".tif": "TIFF", ".tiff": "TIFF", ".ppm": "PPM", ".pgm": "PPM"},
}
_FORMATS = tuple(dict.fromkeys(FORMATS.values()))

# Pillow warns of odd metadata and of large pictures; pictures that are too large are errors here.
warnings.filterwarnings("ignore", module=r"PIL\.")


class ImageError(ValueError):
    """Raised for an image that does not fit its net. The message names neither database nor key: the caller does."""


class UndecodableImage(ImageError):
    """Raised for bytes that are no image, or only a part of one, or one that is too large. Such images can be
    skipped."""


class Picture:
    """A picture of 1 or 3 channels of bytes on its way to the net.

    It remembers what is asked of it, and does it in one go, in C++ and without the GIL, for the pixels that are wanted
    in the end. A JPEG is decoded only then, and only as far as these pixels need.
    """

    __slots__ = ("_box", "_filter", "_header", "_source", "_source_size", "height", "mode", "width")

    def __init__(self, source: bytes | np.ndarray, mode: str, size: tuple[int, int], header: Header | None = None):
        """source: a JPEG, with its header, or pixels (h, w, 1 or 3) in Caffe's order. mode: what it becomes, COLOR or
        GRAY. size: (width, height) of the source."""
        self._source, self._header = source, header
        self.mode, self._source_size = mode, size
        self.width, self.height = size
        self._box = (0, 0, *size)
        self._filter: int | None = None  # None: it is not resized

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.width, self.height

    def _like(self) -> Picture:
        picture = Picture(self._source, self.mode, self._source_size, self._header)
        picture._box, picture._filter = self._box, self._filter
        picture.width, picture.height = self.width, self.height
        return picture

    def coloured(self, mode: str) -> Picture:
        """Returns the picture in another mode. Raises UndecodableImage."""
        picture = self._like() if self._filter is None else Picture(self.pixels(), self.mode, self.size)
        picture.mode = mode
        return picture

    def resized(
        self, size: tuple[int, int], resample: int, box: tuple[float, float, float, float] | None = None
    ) -> Picture:
        """Returns the picture, or the part of it in `box`, in another size (width, height).

        Raises UndecodableImage if the picture is too large, before or after, or in between.
        """
        _check_resizing(self.size, size)
        picture = self._like() if self._filter is None else Picture(self.pixels(), self.mode, self.size)
        picture._box, picture._filter = box or (0, 0, *self.size), resample
        picture.width, picture.height = size
        return picture

    @property
    def pending(self) -> bool:
        """Whether something is left to do before it has pixels."""
        source = self._source
        return not isinstance(source, np.ndarray) or self._filter is not None or source.shape[2] != len(self.mode)

    def pixels(self) -> np.ndarray:
        """Returns its pixels (h, w, c) uint8. Raises UndecodableImage."""
        if isinstance(self._source, np.ndarray) and not self.pending:
            return self._source
        out = np.empty((self.height, self.width, len(self.mode)), np.uint8)
        self.write((0, 0, self.height, self.width, False), None, 1.0, out)
        return out

    def write(
        self, window: tuple[int, int, int, int, bool], mean: np.ndarray | None, scale: float, out: np.ndarray
    ) -> None:
        """Writes a part of the picture, window (top, left, height, width, mirrored), to out.

        out: float32 (c, h, w), for pixels from which mean, (c,) or (c, height, width), is subtracted and which are then
        multiplied by scale; or uint8 (h, w, c), for the pixels as they are. Raises UndecodableImage."""
        core = _decoder()
        resample = NEAREST if self._filter is None else self._filter
        how = (self._box, self.size, resample, window, mean, scale, out)
        if self._header is not None:
            if core.fill_from_jpeg(self._source, self._header, *how):
                return
            # It is damaged. Pillow says how, or makes the best of it.
            decoded = decode_bytes(bytes(self._source), self.mode)
            if decoded.size != self._source_size:  # boxes and sizes were chosen for the header's
                raise UndecodableImage(f"it has {self._source_size} pixels by its header, and {decoded.size} in fact")
            self._source, self._header = as_array(decoded), None
        core.fill_from_pixels(self._source, *how)


Header: TypeAlias = "tuple[int, int, int, int]"  # width, height, channels, scans, as jpeg_header() finds them


@functools.cache
def _decoder() -> ModuleType:
    """Returns the extension, once it has loaded Pillow's libjpeg. If that is linked into Pillow so that nobody else can
    call it, jpeg_header() knows no JPEG, and Pillow decodes them all."""
    from engine.host import _core

    global _lack
    _lack = _core.load_jpeg_library(_imaging.__file__)
    return _core


_lack = ""  # why _decoder() cannot read JPEGs
_slowed = False  # whether Pillow has decoded a JPEG for this reason


def jpeg_decoder() -> str:
    """Returns what decodes JPEGs, in a few words."""
    _decoder()
    return f"Pillow, as a whole and slower: {_lack}" if _lack else "libjpeg-turbo, the parts that crops need"


def slow_jpegs() -> str:
    """Returns a note if Pillow has decoded JPEGs because its libjpeg cannot be called; else ""."""
    if not (_lack and _slowed):
        return ""
    return (
        f"JPEGs are decoded by Pillow as a whole, which takes longer: its libjpeg cannot be called ({_lack}). "
        "Pillow's own wheel (pip install --force-reinstall pillow) has one that can"
    )


def open_image(data: bytes, color: str | None = None) -> Picture:
    """Returns the image of a file's bytes. color: COLOR or GRAY to force one; None keeps grey grey. Raises
    UndecodableImage."""
    header: Header | None = _decoder().jpeg_header(data)
    if header is None:
        if _lack and data[:2] == b"\xff\xd8":
            global _slowed
            _slowed = True
        return as_picture(decode_bytes(data, color))
    width, height, channels, scans = header
    try:
        _check_size("it has", width, height)
        _check_scans(scans, width, height)
    except UndecodableImage as error:
        raise _undecodable(data, str(error)) from None
    return Picture(data, color or (GRAY if channels == 1 else COLOR), (width, height), header)


def parse_datum(value: bytes) -> Datum:
    """Returns the Datum in serialised bytes. Raises UndecodableImage."""
    try:
        return proto.Datum.FromString(value)
    except DecodeError as error:
        raise UndecodableImage(f"not a Datum: {error}") from None


def parse_annotated(value: bytes) -> proto.AnnotatedDatum:
    """Returns the AnnotatedDatum in serialised bytes. Raises UndecodableImage."""
    try:
        return proto.AnnotatedDatum.FromString(value)
    except DecodeError as error:
        raise UndecodableImage(f"not an AnnotatedDatum: {error}") from None


def decode(datum: Datum, color: str | None = None) -> AnyImage:
    """Returns the image of a Datum. color: COLOR or GRAY to force one; None keeps grey grey and makes all else COLOR.

    Raises ImageError, UndecodableImage.
    """
    data = datum.data
    if datum.encoded:
        return open_image(data, color)
    image = _raw_pixels(datum, data)
    if color is None or image.shape[2] == len(color):
        return image
    return as_pillow(image).convert(color)


_pillow_nanoseconds = 0


def pillow_nanoseconds() -> int:
    """Returns the nanoseconds that decode_bytes() has taken so far; exact only if one thread decodes."""
    return _pillow_nanoseconds


def decode_bytes(data: bytes, color: str | None = None, deep: bool = False) -> Image.Image:
    """Decodes the bytes of an image file, completely.

    deep: whether grey of 16 bits keeps them, whatever the `color`, in one of Pillow's modes whose names begin with "I";
    else it keeps the upper 8 bits. Raises UndecodableImage."""
    begin = time.perf_counter_ns()
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_size("it has", *image.size)
        _check_scans(_scans(data), *image.size)
        image.load()
        if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
            kind = "floats" if image.mode == "F" else "integers of 32 bits or with a sign"
            raise ValueError(f"its pixels are {kind}, of which nobody knows what is white; make 8 or 16 bits of them")
        if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow's convert() would clip instead of scale
            if deep:
                return image
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        color = color or (GRAY if image.mode in ("1", "L", "LA") else COLOR)
        return image if image.mode == color else image.convert(color)
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        why = reason(error).split(" <_io.")[0]  # Pillow would name the buffer in memory
        raise _undecodable(data, why) from None
    finally:
        global _pillow_nanoseconds
        _pillow_nanoseconds += time.perf_counter_ns() - begin


def _undecodable(data: bytes, why: str) -> UndecodableImage:
    return UndecodableImage(f"cannot decode {len(data)} bytes as an image: {why}")


def decode_mask(data: bytes) -> Image.Image:
    """Decodes a mask, which has a class for each pixel, to an image of mode L. The classes are the file's grey values,
    or the numbers of its palette's colours.

    Raises UndecodableImage, also for a picture in colours, and for classes above 255.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_size("it has", *image.size)
        _check_scans(_scans(data), *image.size)
        stretch = _stretch(image)
        image.load()
        if image.mode in ("P", "1"):
            return Image.fromarray(np.asarray(image).astype(np.uint8))
        if image.mode == "L" and stretch == 1:
            return image
        if image.mode != "L" and not image.mode.startswith("I"):
            raise ValueError(f"expected a mask of one channel or with a palette, got mode {image.mode}")
        classes = np.rint(np.asarray(image) / stretch)
        for most in (classes.min(initial=0), classes.max(initial=0)):
            if not 0 <= most <= 255:
                raise ValueError(f"a mask has classes 0 to 255, got {most:.0f}")
        return Image.fromarray(classes.astype(np.uint8))
    except Exception as error:
        why = reason(error).split(" <_io.")[0]
        raise UndecodableImage(f"cannot decode {len(data)} bytes as a mask: {why}") from None


def _stretch(image: ImageFile.ImageFile) -> float:
    """Returns the factor by which Pillow will multiply the grey values of an open file, so that the largest possible
    value is white: other than 1 for PNGs and TIFFs of 2 or 4 bits, and for PGMs."""
    for codec, _, _, how in image.tile[:1]:
        arguments: tuple[Any, ...] = how if isinstance(how, tuple) else (how,)
        if codec in ("ppm", "ppm_plain") and image.mode in ("L", "I"):
            return (255 if image.mode == "L" else 65535) / arguments[-1]
        if bits := re.match("L;([24])", str(arguments[0])):
            return 255 / (2 ** int(bits[1]) - 1)
    return 1


def resized(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Returns an image in another size (width, height).

    Raises UndecodableImage if the image is too large, before or after, or in between: Pillow resizes rows first.
    """
    _check_resizing(image.size, size)
    return image.resize(size, resample)


def canvas(mode: str, size: tuple[int, int], colour: int | tuple[int, ...]) -> Image.Image:
    """Returns an image of one colour. Raises UndecodableImage if it would be too large."""
    _check_size("it would be put on a canvas of", *size)
    return Image.new(mode, size, colour)


def _check_size(what: str, width: int, height: int) -> None:
    if not fits(width, height):
        raise UndecodableImage(
            f"{what} {width} x {height} pixels; at most {MAX_SIDE} on a side and {MAX_PIXELS} in all are supported"
        )


def _check_resizing(before: tuple[int, int], after: tuple[int, int]) -> None:
    _check_size("it would be resized to", *after)
    _check_size("it would be resized by way of", after[0], before[1])
    _check_size("it would be resized from", before[0], 1)


def _check_scans(scans: int, width: int, height: int) -> None:
    """Raises UndecodableImage for too many scans: 34 bytes of a JPEG can be a scan, which goes over all its pixels."""
    if scans * width * height > MAX_SCANNED:
        raise UndecodableImage(f"it has {scans} scans of {width} x {height} pixels")


def _scans(data: bytes) -> int:
    return _decoder().jpeg_scans(data) if data[:2] == b"\xff\xd8" else 1


def _raw_pixels(datum: Datum, data: bytes) -> np.ndarray:
    """Returns a view (h, w, c) of the Datum's own (c, h, w) numbers. Raises UndecodableImage."""
    shape = (datum.channels, datum.height, datum.width)
    if not (data or datum.float_data):
        raise UndecodableImage(
            "the Datum has neither data nor float_data; an LMDB of AnnotatedDatums (SSD's) is read by type: "
            '"AnnotatedData", one of Datums by type: "Data"'
        )
    pixels = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    expected = prod(max(0, side) for side in shape)
    if expected == 0 or pixels.size != expected:
        raise UndecodableImage(
            f"Datum of {shape_text(shape)} (channels x height x width) holds {pixels.size} numbers instead of "
            f"{expected}"
        )
    return pixels.reshape(shape).transpose(1, 2, 0)


def as_picture(image: AnyImage) -> Picture:
    """Returns an image as a Picture. Raises ImageError for floats, and for 2 or more than 3 channels, which cannot be
    resized; UndecodableImage."""
    if isinstance(image, Picture):
        return image
    pixels = as_array(image)
    check_pixels(pixels)
    return Picture(pixels, COLOR if pixels.shape[2] == 3 else GRAY, (pixels.shape[1], pixels.shape[0]))


def check_pixels(image: np.ndarray) -> None:
    """Raises ImageError for floats, and for 2 or more than 3 channels: these cannot be resized or change colours."""
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise ImageError(
            f"an image of {image.shape[2]} {image.dtype} channels cannot be resized or change its colours; "
            "that takes 1 or 3 channels of bytes"
        )


def as_pillow(image: AnyImage) -> Image.Image:
    """Returns an image as Pillow's, of mode L or RGB. Raises ImageError for floats, and for 2 or more than 3 channels,
    for which Pillow has no mode; UndecodableImage."""
    if isinstance(image, Image.Image):
        return image
    pixels = as_array(image)
    check_pixels(pixels)
    mode, order = (COLOR, "BGR") if pixels.shape[2] == 3 else (GRAY, GRAY)
    return Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes(), "raw", order)


def as_array(image: AnyImage) -> np.ndarray:
    """Returns an image as an array (h, w, c), channels in the order B, G, R. Raises UndecodableImage."""
    if isinstance(image, np.ndarray):
        return image
    if isinstance(image, Picture):
        return image.pixels()
    packed = image.tobytes() if image.mode == GRAY else image.tobytes("raw", "BGR")
    return np.frombuffer(packed, np.uint8).reshape(image.height, image.width, len(image.mode))
