"""Live arrays of tensors: a run uses what was written into them and leaves its results in them.

A tensor in row-major order is seen in place. One in a layout of oneDNN's is seen through a copy, which is written back
before a run and read again after it, for as long as somebody holds it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.host._core import Tensor

_HELD_BY_US = 2  # references to a copy that nobody else holds: the dictionary's and the one being counted


class Views:
    """The arrays of one net, or of the parameters of several that share them."""

    def __init__(self):
        self._copies: dict[Tensor, np.ndarray] = {}  # by tensor

    def array(self, tensor: Tensor, shape: tuple[int, ...], owner: object) -> np.ndarray:
        """float32 of `shape`, the tensor's values. `owner`: the object that keeps the memory alive."""
        values = tensor.view(owner)
        if values is not None:
            return values.reshape(shape)
        if tensor not in self._copies:
            values = tensor.get()  # which owns its memory, so that every view of it counts as a reference
            self._copies[tensor] = values if values.shape == shape else values.reshape(shape).copy()
        return self._copies[tensor]

    def adopt(self, others: Views) -> None:
        """Takes over the arrays of others, too."""
        self._copies = others._copies | self._copies

    def push(self) -> None:
        """Before a run: what was written into copies goes to the tensors; copies that nobody holds are dropped."""
        for tensor in list(self._copies):
            tensor.set(self._copies[tensor])
            if sys.getrefcount(self._copies[tensor]) <= _HELD_BY_US:
                del self._copies[tensor]

    def pull(self) -> None:
        """After a run, or after another change of the tensors that followed a push()."""
        for tensor, values in self._copies.items():
            values[...] = tensor.get().reshape(values.shape)
