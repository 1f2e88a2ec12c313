"""Mean images, in the BlobProto files that Caffe's tools read and write (mean.binaryproto)."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from engine import proto
from engine.errors import DataError, WeightsError, shape_text
from engine.files import atomic_write
from engine.weights.protobuf import blob_array


def read_mean(path: str, where: str | None = None) -> np.ndarray:
    """(c, h, w) float32 from a BlobProto of 1 x c x h x w, or c x h x w. Raises DataError."""
    try:
        with open(path, "rb") as file:
            mean = blob_array(proto.raw.BlobProto.FromString(file.read()))
    except OSError as error:
        raise DataError(f"cannot read mean_file {path}: {error.strerror}", where) from None
    except (DecodeError, WeightsError) as error:
        raise DataError(f"mean_file {path} is truncated or not a BlobProto: {error}", where) from None
    if mean.ndim not in (3, 4) or mean.size == 0 or mean.size != np.prod(mean.shape[-3:]):
        raise DataError(f"mean_file {path} holds a blob of {shape_text(mean.shape)}, not one image", where)
    return mean.reshape(mean.shape[-3:])


def write_mean(path: str, mean: np.ndarray) -> None:
    """Writes a mean image (c, h, w) as a BlobProto of 1 x c x h x w, whole or not at all. Raises EngineError."""
    channels, height, width = mean.shape
    # The older form of the shape, which every reader of mean files knows.
    blob = proto.raw.BlobProto(num=1, channels=channels, height=height, width=width)
    blob.data.append(np.ascontiguousarray(mean, "<f4").tobytes())
    with atomic_write(path) as file:
        file.write(blob.SerializeToString())
