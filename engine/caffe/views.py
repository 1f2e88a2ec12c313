"""Live arrays of tensors: a run uses what was written into them and leaves its results in them.

The array of a tensor in row-major order is its own memory. For a tensor in a layout of oneDNN's it is a copy, which is
written back before a run and read again after it, for as long as the script holds it. So it is for any tensor whose
array was asked for by copy().
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.host._core import Tensor

_HELD_BY_US = 2  # references to a copy that no script holds: that of the dictionary, and the argument of getrefcount()


class Views:
    """The arrays of one net, or of the parameters of several that share them."""

    def __init__(self):
        self._copies: dict[Tensor, np.ndarray] = {}  # by tensor

    def array(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the tensor's values as a live float32 array of `shape`, in place if the layout allows."""
        values = None if tensor in self._copies else tensor.view()
        return self.copy(tensor, shape) if values is None else values.reshape(shape)

    def copy(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the tensor's values as a live copy of `shape`, never in place."""
        if tensor not in self._copies:
            values = tensor.get()  # it owns its memory, so that every view of it counts as a reference
            self._copies[tensor] = values if values.shape == shape else values.reshape(shape).copy()
        return self._copies[tensor].reshape(shape)

    def adopt(self, others: Views) -> None:
        """Adds the arrays of `others`; for a tensor of both, its own array stays."""
        self._copies = others._copies | self._copies

    def of(self, tensors: Mapping[Tensor, Tensor]) -> Views:
        """Returns Views in which the copies of some tensors are those of other tensors. tensors: old -> new."""
        result = Views()
        result._copies = {tensors[tensor]: values for tensor, values in self._copies.items() if tensor in tensors}
        return result

    def move(self, tensor: Tensor, other: Tensor) -> None:
        """Makes the copy of `tensor`, if there is one, that of `other`."""
        if tensor is not other and tensor in self._copies:
            self._copies[other] = self._copies.pop(tensor)

    def push(self) -> None:
        """Writes the copies that scripts have changed into their tensors, and drops those that nobody holds. Call it
        before a run. Unchanged copies are not written: of two tensors that share memory, the script may have changed
        the copy of one."""
        for tensor, values in self.changed():
            tensor.set(values)
        self.release()

    def changed(self) -> list[tuple[Tensor, np.ndarray]]:
        """Returns the copies that scripts have written into: those that differ from their tensors in any bit."""
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
        """Reads the tensors into their copies. Call it after a run, or after a push() and another change of tensors."""
        for tensor, values in self._copies.items():
            values[...] = tensor.get().reshape(values.shape)
