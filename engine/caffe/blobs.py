"""The blobs of a caffe.Net: net.blobs["data"], net.params["conv1"][0]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError, shape_text
from engine.layers.python_layer import Blob, Shape, dims

if TYPE_CHECKING:
    from engine.caffe.changing import ChangingNet


class NetBlob(Blob):
    """A blob by name: `data` and `diff` are what the last run left, and are used by the next."""

    def __init__(self, net: ChangingNet, name: str):
        self._net, self._name = net, name

    def __repr__(self) -> str:
        return f"<blob '{self._name}': {shape_text(self.shape)}>"

    @property
    def data(self) -> np.ndarray:
        return self._net.data(self._name)

    @property
    def diff(self) -> np.ndarray:
        return self._net.live.diff(self._name)

    @property
    def shape(self) -> Shape:
        return self._net.shape(self._name)

    def reshape(self, *shape: int) -> None:
        """Of an input of the net; the others follow at net.reshape() or the next forward."""
        self._net.reshape_input(self._name, dims(shape))


class ParamBlob(Blob):
    """Blob `index` of a layer's parameters."""

    def __init__(self, net: ChangingNet, layer: str, index: int):
        self._net, self._layer, self._index = net, layer, index

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
