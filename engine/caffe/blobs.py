"""The blobs of a caffe.Net: net.blobs["data"], net.params["conv1"][0]."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from engine.errors import EngineError, shape_text
from engine.layers.python_layer import Blob, Shape, dims

if TYPE_CHECKING:
    from engine.caffe.changing import ChangingNet

Entry = TypeVar("Entry")


class ByName(OrderedDict[str, Entry]):
    """Blobs or parameters of a net by name. Raises EngineError for an assignment, which would change nothing in the
    net."""

    def __init__(self, entries: Iterable[tuple[str, Entry]], entry: str, blob: str):
        """entry, blob: how a script writes an entry, and the first blob of it, with {} in place of the name."""
        super().__init__()
        for name, value in entries:
            super().__setitem__(name, value)
        self._entry, self._blob = entry, blob

    def __setitem__(self, name: str, value: Any) -> None:
        raise _stays(self._entry.format(repr(name)), self._blob.format(repr(name)))

    def copy(self) -> OrderedDict[str, Entry]:
        """Returns a plain OrderedDict, which takes assignments."""
        return OrderedDict(self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __reduce__(self) -> NoReturn:
        raise EngineError("blobs of a net cannot be copied or pickled; copy their values: blob.data.copy()")


def _stays(entry: str, blob: str) -> EngineError:
    """Returns the error of an assignment to an entry. blob: what to write values into instead."""
    return EngineError(f"{entry} cannot be replaced; write values: {blob}.data[...] = values")


class NetBlob(Blob):
    """A blob of a net, by name: `data` and `diff` are what the last run left, and the next run uses them."""

    def __init__(self, net: ChangingNet, name: str):
        self._net, self._name = net, name

    def __repr__(self) -> str:
        return f"<blob '{self._name}': {shape_text(self.shape)}>"

    @property
    def data(self) -> np.ndarray:
        return self._net.data(self._name)

    @property
    def diff(self) -> np.ndarray:
        return self._net.diff(self._name)

    @property
    def shape(self) -> Shape:
        return self._net.shape(self._name)

    def reshape(self, *shape: int) -> None:
        """Gives an input of the net another shape; the other blobs follow at net.reshape() or the next forward. Raises
        EngineError for a blob that is no input."""
        self._net.reshape_input(self._name, dims(shape))


class ParamBlob(Blob):
    """Blob `index` of a layer's parameters."""

    def __init__(self, net: ChangingNet, layer: str, index: int):
        self._net, self._layer, self._index = net, layer, index

    @property
    def called(self) -> str:
        """How a script writes this blob."""
        return f"net.params[{self._layer!r}][{self._index}]"

    def __repr__(self) -> str:
        return f"<parameter {self._index} of layer '{self._layer}': {shape_text(self.shape)}>"

    @property
    def data(self) -> np.ndarray:
        return self._net.parameter(self._layer, self._index)

    @property
    def diff(self) -> np.ndarray:
        return self._net.live.parameter_diff(self._layer, self._index)

    @property
    def shape(self) -> Shape:
        return self._net.params_of[self._layer][self._index].shape

    def reshape(self, *shape: int) -> None:
        if dims(shape) != self.shape:
            raise EngineError(
                f"layer '{self._layer}', blob {self._index}: has the shape {self.shape} that its layer says, not "
                f"{dims(shape)}; change the prototxt"
            )


class ParamBlobs(tuple[ParamBlob, ...]):
    """The parameters of a layer. Raises EngineError for an assignment, as ByName does."""

    def __setitem__(self, index: Any, value: Any) -> None:
        blob = (self[index] if isinstance(index, int) else self[0]).called
        raise _stays(blob, blob)
