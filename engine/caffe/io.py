"""caffe.io: reads images as arrays, and converts arrays to and from Caffe's messages.

Images are float32 (height, width, channels), RGB, in [0, 1], as load_image() returns them; a Transformer turns them
into inputs of a net.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, cast

import numpy as np

from engine.data.decode import COLOR, decode_bytes
from engine.errors import ConfigError, DataError
from engine.proto import caffe_pb2
from engine.weights.protobuf import c3d_width

__all__ = [
    "Transformer",
    "array_to_blobproto",
    "array_to_datum",
    "arraylist_to_blobprotovecor_str",
    "arraylist_to_blobprotovector_str",
    "blobproto_to_array",
    "blobprotovector_str_to_arraylist",
    "caffe_pb2",
    "datum_to_array",
    "load_image",
    "oversample",
    "resize_image",
]

_LUMINANCE = np.array([0.2125, 0.7154, 0.0721], np.float32)  # of R, G, B: ITU-R BT.709, as scikit-image has it


class UnreadableImage(DataError, OSError):
    """An image file that cannot be read. An OSError, too, which scripts of Caffe's catch."""


def load_image(filename: str | os.PathLike | IO[bytes], color: bool = True) -> np.ndarray:
    """Returns an image as float32 in [0, 1]: (h, w, 3), RGB, or with color=False (h, w, 1), grey. An image of 16-bit
    grey keeps its 16 bits.

    filename: a path, or an open binary file, which is read from its beginning. Raises UnreadableImage."""
    try:
        image = decode_bytes(_content(filename), COLOR, deep=True)
    except (OSError, ValueError) as error:
        named = getattr(filename, "name", "the open file") if hasattr(filename, "read") else filename
        raise UnreadableImage(f"cannot read the image: {error}", str(named)) from None
    if image.mode != COLOR:
        grey = np.asarray(image, np.float32)[:, :, np.newaxis] / 65535
        return grey.repeat(3, axis=2) if color else grey
    pixels = np.asarray(image, np.float32) / 255
    return pixels if color else (pixels @ _LUMINANCE)[:, :, np.newaxis]


def _content(file: str | os.PathLike | IO[bytes]) -> bytes:
    if not hasattr(file, "read"):
        with open(cast("str | os.PathLike", file), "rb") as opened:
            return opened.read()
    opened = cast("IO[bytes]", file)
    with contextlib.suppress(AttributeError, OSError):  # a stream cannot go back
        opened.seek(0)  # as Caffe's image library does: the script may just have written the picture
    return opened.read()


def oversample(images: Iterable[np.ndarray], crop_dims: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns ten crops of each of n images of one size, as (10 * n, *crop_dims, channels) float32: the corners, the
    centre, and their mirror images."""
    images = np.asarray(list(images), np.float32)
    height, width = (int(dim) for dim in crop_dims)
    bottom, right = images.shape[1] - height, images.shape[2] - width
    places = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    crops = np.stack([images[:, y : y + height, x : x + width] for y, x in places], axis=1)
    both = np.concatenate([crops, crops[:, :, :, ::-1]], axis=1)
    return both.reshape(-1, height, width, images.shape[3])


def resize_image(im: np.ndarray, new_dims: Sequence[int], interp_order: int = 1) -> np.ndarray:
    """Resizes an image (h, w, channels) of any channels and any range of values to float32 (*new_dims, channels).

    interp_order 0 takes the nearest pixel, 1 interpolates linearly. Pixels are squares whose centres lie at halves;
    beyond the edge, the edge is repeated. Images are not smoothed before they are made smaller. Raises ValueError for
    other orders.
    """
    if interp_order not in (0, 1):
        raise ValueError(f"expected interp_order 0 (nearest) or 1 (linear), got {interp_order}")
    result = np.asarray(im, np.float32)
    for axis in (0, 1):
        result = _resize_axis(result, axis, int(new_dims[axis]), interp_order)
    return result


def _resize_axis(im: np.ndarray, axis: int, size: int, order: int) -> np.ndarray:
    if size == im.shape[axis]:
        return im
    last = im.shape[axis] - 1
    at = (np.arange(size) + 0.5) * (im.shape[axis] / size) - 0.5
    if order == 0:
        return im.take(np.clip(np.rint(at), 0, last).astype(int), axis)
    at = np.clip(at, 0, last)
    low = np.floor(at).astype(int)
    weight = (at - low).astype(np.float32).reshape([-1 if i == axis else 1 for i in range(im.ndim)])
    return im.take(low, axis) * (1 - weight) + im.take(np.minimum(low + 1, last), axis) * weight


class Transformer:
    """Turns images into the inputs of a net, and back. Each input has settings of its own.

    inputs: the shapes (n, channels, height, width) of the net's input blobs, by name.

    preprocess() does the steps that are set, in this order: resize, transpose, channel_swap, raw_scale, mean,
    input_scale. All methods raise ConfigError for a name that is no input, and the setters for a setting that does not
    fit the shape of the input.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]):
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.inputs:
            raise ConfigError(f"'{name}' is not an input of the net; inputs: {', '.join(self.inputs)}")
        return self.inputs[name]

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Returns an image (h, w, channels) as float32 in the shape of the input `in_`, without the batch axis."""
        height, width = self._shape(in_)[2:]
        image = np.asarray(data, np.float32)
        if image.shape[:2] != (height, width):
            image = resize_image(image, (height, width))
        if in_ in self.transpose:
            image = image.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            image = image[list(self.channel_swap[in_])]
        if in_ in self.raw_scale:
            image = image * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            image = image - self.mean[in_]
        if in_ in self.input_scale:
            image = image * np.float32(self.input_scale[in_])
        return image

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Returns the image (h, w, channels), in the net's size, from which preprocess() has made `data`."""
        self._shape(in_)
        image = np.array(data, np.float32).squeeze()
        if image.ndim == 2:  # squeeze() has taken a single channel, too
            image = image[np.newaxis]
        if in_ in self.input_scale:
            image /= self.input_scale[in_]
        if in_ in self.mean:
            image += self.mean[in_]
        if in_ in self.raw_scale:
            image /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            image = image[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            image = image.transpose(np.argsort(self.transpose[in_]))
        return image

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Sets the order of an image's axes in the net: (2, 0, 1) turns (h, w, channels) into (channels, h, w)."""
        if len(order) != len(self._shape(in_)) - 1:
            raise ConfigError(f"input '{in_}': expected the order of {len(self._shape(in_)) - 1} axes, got {order}")
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Sets the order of channels: (2, 1, 0) turns RGB into BGR."""
        channels = self._shape(in_)[1]
        if sorted(order) != list(range(channels)):
            raise ConfigError(f"input '{in_}': expected the order of {channels} channels, got {order}")
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Sets the factor of an image before the mean is subtracted: 255, if the mean is that of bytes."""
        self._shape(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """Sets the mean that is subtracted: a value for each channel, or an image (channels, h, w), which is resized to
        the input's size."""
        channels, height, width = self._shape(in_)[1:]
        mean = np.asarray(mean, np.float32)
        if mean.ndim == 1:
            mean = mean[:, np.newaxis, np.newaxis]
        if mean.ndim == 2:
            mean = mean[np.newaxis]
        if mean.ndim != 3 or mean.shape[0] not in (1, channels):
            raise ConfigError(f"input '{in_}': expected a mean of {channels} channels, got the shape {mean.shape}")
        if mean.shape[1:] not in ((1, 1), (height, width)):
            mean = resize_image(mean.transpose(1, 2, 0), (height, width)).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Sets the factor of an image after the mean is subtracted."""
        self._shape(in_)
        self.input_scale[in_] = scale


# Messages


def blobproto_to_array(blob, return_diff: bool = False) -> np.ndarray:
    """Returns the data (or diff) of a BlobProto as float32 in its shape: (num, channels, height, width) for older ones,
    (num, channels, length, height, width) for C3D's."""
    width = c3d_width(blob)
    if width is not None and not return_diff:
        return np.array(blob.diff, np.float32).reshape(blob.num, blob.channels, blob.height or 1, blob.width, width)
    values = np.array(blob.diff if return_diff else blob.data, np.float32)
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(axis) for axis in legacy):
        return values.reshape([getattr(blob, axis) for axis in legacy])
    return values.reshape(tuple(blob.shape.dim))


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None):
    """Returns a BlobProto with the shape and values of an array, and with its gradient, of the same shape, if given."""
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(np.shape(arr))
    blob.shape.SetInParent()
    blob.data.extend(np.asarray(arr, np.float32).ravel())
    if diff is not None:
        blob.diff.extend(np.asarray(diff, np.float32).ravel())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[np.ndarray]) -> bytes:
    """Returns a serialized BlobProtoVector."""
    return caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(array) for array in arraylist]).SerializeToString()


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str  # as Caffe spells it


def blobprotovector_str_to_arraylist(text: bytes) -> list[np.ndarray]:
    return [blobproto_to_array(blob) for blob in caffe_pb2.BlobProtoVector.FromString(text).blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None):
    """Returns a Datum of an array (channels, height, width): its data are bytes for uint8, else floats. Raises
    ValueError for other shapes."""
    if arr.ndim != 3:
        raise ValueError(f"expected (channels, height, width), got {arr.shape}")
    datum = caffe_pb2.Datum(channels=arr.shape[0], height=arr.shape[1], width=arr.shape[2])
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.ravel().astype(float))
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum) -> np.ndarray:
    """Returns the array (channels, height, width) of a Datum: uint8, or float32 if the Datum holds floats. Its label is
    datum.label."""
    shape = (datum.channels, datum.height, datum.width)
    if datum.data:
        return np.frombuffer(datum.data, np.uint8).reshape(shape).copy()
    return np.array(datum.float_data, np.float32).reshape(shape)
