"""caffe.io.resize_image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def resize_image(im: np.ndarray, new_dims: Sequence[int], interp_order: int = 1) -> np.ndarray:
    """float32 (*new_dims, channels) of an image (h, w, channels) with any number of channels and any range of values.

    interp_order 0 takes the nearest pixel, 1 interpolates linearly; pixels are squares whose centres lie at halves, and
    what lies outside is as the edge. No smoothing before an image is made smaller. Raises ValueError for other orders.
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
