"""caffe.io: images as arrays, and arrays in Caffe's messages.

Images are float32 (height, width, channels), RGB, in [0, 1], as load_image() gives them; a Transformer makes of them
what goes into a net.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from engine.caffe.resize import resize_image
from engine.caffe.transformer import Transformer
from engine.data.decode import BGR, decode_bytes
from engine.errors import DataError
from engine.proto import caffe_pb2

__all__ = [
    "Transformer",
    "array_to_blobproto",
    "array_to_datum",
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


def load_image(filename: str | os.PathLike, color: bool = True) -> np.ndarray:
    """float32 (h, w, 3) in [0, 1], RGB; (h, w, 1) of grey with color=False. Raises DataError."""
    try:
        with open(filename, "rb") as file:
            pixels = np.asarray(decode_bytes(file.read(), BGR), np.float32) / 255
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the image: {error}", str(filename)) from None
    return pixels if color else (pixels @ _LUMINANCE)[:, :, np.newaxis]


def oversample(images: Iterable[np.ndarray], crop_dims: Sequence[int]) -> np.ndarray:
    """Ten crops (10 * n, height, width, channels) of n images of one size: the corners, the centre, and their mirror
    images."""
    images = np.asarray(list(images), np.float32)
    height, width = (int(dim) for dim in crop_dims)
    bottom, right = images.shape[1] - height, images.shape[2] - width
    places = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    crops = np.stack([images[:, y : y + height, x : x + width] for y, x in places], axis=1)
    both = np.concatenate([crops, crops[:, :, :, ::-1]], axis=1)
    return both.reshape(-1, height, width, images.shape[3])


# Messages


def blobproto_to_array(blob, return_diff: bool = False) -> np.ndarray:
    """The data (or diff) of a BlobProto in its shape; of older ones (num, channels, height, width)."""
    values = np.array(blob.diff if return_diff else blob.data, np.float32)
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(axis) for axis in legacy):
        return values.reshape([getattr(blob, axis) for axis in legacy])
    return values.reshape(tuple(blob.shape.dim))


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None):
    """A BlobProto of the array's shape and values, and of the gradient of the same shape, if there is one."""
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(np.shape(arr))
    blob.shape.SetInParent()
    blob.data.extend(np.asarray(arr, np.float32).ravel())
    if diff is not None:
        blob.diff.extend(np.asarray(diff, np.float32).ravel())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[np.ndarray]) -> bytes:
    """A serialized BlobProtoVector."""
    return caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(array) for array in arraylist]).SerializeToString()


def blobprotovector_str_to_arraylist(text: bytes) -> list[np.ndarray]:
    return [blobproto_to_array(blob) for blob in caffe_pb2.BlobProtoVector.FromString(text).blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None):
    """A Datum of (channels, height, width): bytes of uint8, else floats. Raises ValueError for other shapes."""
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
    """(channels, height, width): uint8, or float32 where the Datum holds floats. The label is datum.label."""
    shape = (datum.channels, datum.height, datum.width)
    if datum.data:
        return np.frombuffer(datum.data, np.uint8).reshape(shape)
    return np.array(datum.float_data, np.float32).reshape(shape)
