"""Live arrays of tensors: a run uses what was written into them and leaves its results in them.

A tensor in row-major order is seen in place. One in a layout of oneDNN's is seen through a copy, which is written back
before a run and read again after it, for as long as somebody holds it. So is any tensor of which somebody has asked for
a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.host._core import Tensor

_HELD_BY_US = 2  # references to a copy that nobody else holds: the dictionary's and the one being counted


class Views:
    """The arrays of one net, or of the parameters of several that share them."""

    def __init__(self):
        self._copies: dict[Tensor, np.ndarray] = {}  # by tensor

    def array(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        """float32 of `shape`, the tensor's values."""
        values = None if tensor in self._copies else tensor.view()
        return self.copy(tensor, shape) if values is None else values.reshape(shape)

    def copy(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        """The same, never in place."""
        if tensor not in self._copies:
            values = tensor.get()  # which owns its memory, so that every view of it counts as a reference
            self._copies[tensor] = values if values.shape == shape else values.reshape(shape).copy()
        return self._copies[tensor].reshape(shape)

    def adopt(self, others: Views) -> None:
        """Takes over the arrays of others, too."""
        self._copies = others._copies | self._copies

    def of(self, tensors: Mapping[Tensor, Tensor]) -> Views:
        """The same copies, as those of the tensors that stand in place of these."""
        result = Views()
        result._copies = {tensors[tensor]: values for tensor, values in self._copies.items() if tensor in tensors}
        return result

    def move(self, tensor: Tensor, other: Tensor) -> None:
        """The copy of the one, if there is one, is the other's from now on."""
        if tensor is not other and tensor in self._copies:
            self._copies[other] = self._copies.pop(tensor)

    def push(self) -> None:
        """Before a run: what was written into copies goes to the tensors, and nothing else: of two that share their
        memory the script may have changed one. Copies that nobody holds are dropped."""
        for tensor, values in self.changed():
            tensor.set(values)
        self.release()

    def changed(self) -> list[tuple[Tensor, np.ndarray]]:
        """The copies that were written into, by the bits."""
        return [
            (tensor, values)
            for tensor, values in self._copies.items()
            if not np.array_equal(tensor.get().ravel().view(np.uint32), values.ravel().view(np.uint32))
        ]

    def release(self) -> None:
        """Drops the copies that nobody holds."""
        for tensor in list(self._copies):
            if sys.getrefcount(self._copies[tensor]) <= _HELD_BY_US:
                del self._copies[tensor]

    def pull(self) -> None:
        """After a run, or after another change of the tensors that followed a push()."""
        for tensor, values in self._copies.items():
            values[...] = tensor.get().reshape(values.shape)
