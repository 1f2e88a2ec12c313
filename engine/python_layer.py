"""Blobs as Python code sees them, and the class that layers written in Python derive from (caffe.Layer)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]


class Blob:
    """An array and its gradient, with the names of Caffe's axes. Subclasses say where `data` and `diff` are."""

    data: np.ndarray
    diff: np.ndarray

    @property
    def shape(self) -> Shape:
        return self.data.shape

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def _axis(self, index: int) -> int:
        """Axes that a blob of fewer than four does not have count 1, as in Caffe."""
        return self.shape[index] if index < len(self.shape) else 1

    @property
    def num(self) -> int:
        return self._axis(0)

    @property
    def channels(self) -> int:
        return self._axis(1)

    @property
    def height(self) -> int:
        return self._axis(2)

    @property
    def width(self) -> int:
        return self._axis(3)

    def reshape(self, *shape: int) -> None:
        """Gives the blob another shape; raises where that cannot be."""
        raise NotImplementedError


def dims(shape: Sequence) -> Shape:
    """The shape that reshape(2, 3), reshape((2, 3)) and reshape(*blob.shape) mean."""
    if len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray):
        shape = shape[0]
    return tuple(int(dim) for dim in shape)
