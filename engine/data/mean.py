"""Reads and writes mean images in the BlobProto files of Caffe's tools (mean.binaryproto)."""

from __future__ import annotations

import numpy as np

from engine import proto
from engine.errors import DataError, WeightsError, shape_text
from engine.files import atomic_write
from engine.weights.protobuf import read_blob


def read_mean(path: str, where: str | None = None) -> np.ndarray:
    """Returns a mean image (c, h, w) float32 from a BlobProto of 1 x c x h x w or c x h x w. The mean of a clip,
    1 x c x length x h x w, is returned as (length * c, h, w), frame after frame, as VideoData stacks them. Raises
    DataError."""
    try:
        mean = read_blob(path)
    except WeightsError as error:
        raise DataError(f"mean_file {error}", where) from None
    if mean.ndim == 5 and mean.size and len(mean) == 1:
        mean = mean[0].swapaxes(0, 1).reshape(-1, *mean.shape[-2:])
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
