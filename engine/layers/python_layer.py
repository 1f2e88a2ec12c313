"""Blobs as Python code sees them, and caffe.Layer, the base of layers written in Python."""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from engine.errors import EngineError

if TYPE_CHECKING:
    from engine import proto
    from engine.host._core import Tensor

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
        """Returns the size of an axis; 1 if the blob has no such axis, as in Caffe."""
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
        """Gives the blob another shape. Raises EngineError if that cannot be."""
        raise NotImplementedError


def dims(shape: Sequence) -> Shape:
    """Returns the shape that reshape(2, 3), reshape((2, 3)) and reshape(*blob.shape) mean. Raises EngineError for
    fractions and for numbers below 0."""
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray) else shape
    whole = tuple(int(dim) for dim in given)
    if any(dim != asked or dim < 0 for dim, asked in zip(whole, given)):
        raise EngineError(f"the axes of a blob are whole numbers from 0 on, got {', '.join(map(str, given))}")
    return whole


class Memory:
    """The memory of a blob that is reshaped. As in Caffe, values stay where they are, one after the other, and are
    there again when the blob has been smaller for a while. Only if it becomes larger than ever it gets new memory, of
    zeros."""

    def __init__(self):
        self._values = np.empty(0, np.float32)

    def reshaped(self, values: np.ndarray, shape: Shape) -> np.ndarray:
        """Returns the blob's array in another shape. values: its array so far, into which the script may have
        written."""
        count = math.prod(shape)
        if not np.may_share_memory(values, self._values):
            self._values = np.array(values, np.float32).reshape(-1)
        if count > self._values.size:
            self._values = np.zeros(count, np.float32)
        return self._values[:count].reshape(shape)


class LayerBlob(Blob):
    """A bottom, top or parameter of a layer written in Python. It is an array of its own until the net is built, and
    then a view of the program's tensor. After a reshape() to another count it is loose: an array of its own again.
    """

    def __init__(self, shape: Sequence[int] = (), diff: float = 0.0):
        """diff: the value of the gradient if backward does not compute one (a loss_weight)."""
        self._shape, self._value = tuple(shape), diff
        self._planned = self._shape
        self._tensor: Tensor | None = None
        self._loose = True
        self._memory = Memory()
        self._data: np.ndarray | None = None
        self._diff: np.ndarray | None = None

    def place(self, tensor: Tensor, shape: Shape) -> None:
        """Makes the blob a view of a tensor, so that arrays that the user's code keeps are the tensor's memory.

        tensor: row-major, of the size of `shape`. If it has no gradient, the blob's gradient stays an array of its
        own."""
        self._tensor, self._loose = tensor, False
        self._shape = self._planned = shape
        self._data = None
        if self._diff is not None and self._diff.shape != shape:
            self._diff = None

    def settle(self) -> bool:
        """Tells whether the shape is the planned one. If it is, and the blob is loose, its values go into the
        tensor."""
        if self._shape != self._planned:
            return False
        if self._loose:
            values, self._loose = self.data, False
            self.data[...] = values
        return True

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def data(self) -> np.ndarray:
        if self._tensor is not None and not self._loose:
            return self._view(self._tensor)
        if self._data is None:
            self._data = np.zeros(self._shape, np.float32)
        return self._data

    @property
    def diff(self) -> np.ndarray:
        if self._tensor is not None and not self._loose and self._tensor.diff is not None:
            return self._view(self._tensor.diff)
        if self._diff is None:
            self._diff = np.full(self._shape, self._value, np.float32)
        return self._diff

    def _view(self, tensor: Tensor) -> np.ndarray:
        return cast(np.ndarray, tensor.view()).reshape(self._shape)

    def reshape(self, *shape: int) -> None:
        """Gives the blob another shape, with the values that Memory keeps. With another count it becomes loose."""
        wanted = dims(shape)
        if wanted == self._shape:
            return
        same = math.prod(wanted) == self.count
        self._diff = self._diff.reshape(wanted) if self._diff is not None and same else None
        if self._loose or not same:
            if self._data is not None or not self._loose:
                self._data = self._memory.reshaped(self.data, wanted)
            self._loose = True
        self._shape = wanted

    def return_to_plan(self) -> None:
        """Gives the blob its planned shape again, before each forward, whatever shape the user's code has given it. In
        Caffe the layer above does so."""
        if self._loose or self._shape != self._planned:
            self.place(cast("Tensor", self._tensor), self._planned)


class Blobs(list):
    """The blobs of a layer. `self.blobs.add_blob(20, 10)` in setup() makes a parameter."""

    def add_blob(self, *shape: int) -> LayerBlob:
        self.append(LayerBlob(dims(shape)))
        return self[-1]


def users_traceback(error: BaseException, caller: str) -> str:
    """Returns the lines of a traceback from the user's code on: without the file `caller`, without the import that led
    there, and without what this file raises for the user."""
    others = (caller, __file__, importlib.__file__, "<frozen importlib")
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(others):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


class PythonLayer:
    """What a layer of `type: "Python"` derives from (caffe.Layer).

    setup() is called once, reshape() when the net is built and before every forward: it gives the tops their shapes.
    bottom and top are lists of blobs, whose `data` and `diff` are float32 arrays to be read and written in place. What
    backward() writes into the diff of parameters is added up over micro-batches; it is zero before the first.

    param_str: of python_param. phase: caffe.TRAIN or caffe.TEST. blobs: the parameters.
    """

    param_str = ""
    param_str_ = ""  # its older name
    phase = 0
    name = ""
    type = "Python"
    blobs: Blobs

    def __init__(self, layer_param: proto.LayerParameter | None = None):
        """layer_param: what the text says of the layer."""

    def setup(self, bottom: list[LayerBlob], top: list[LayerBlob]) -> None:
        """Reads param_str, checks the bottoms, adds parameters."""

    def reshape(self, bottom: list[LayerBlob], top: list[LayerBlob]) -> None:
        """Gives every top its shape."""

    def forward(self, bottom: list[LayerBlob], top: list[LayerBlob]) -> None:
        """Computes the tops' data."""
        raise NotImplementedError(f"class {type(self).__name__} has no forward(self, bottom, top)")

    def backward(self, top: list[LayerBlob], propagate_down: list[bool], bottom: list[LayerBlob]) -> None:
        """Computes the diff of parameters and of the bottoms whose propagate_down is true."""
        raise NotImplementedError(f"class {type(self).__name__} has no backward(self, top, propagate_down, bottom)")
