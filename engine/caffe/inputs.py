"""What the data layers of a caffe.Net are fed: batches of their sources, or of arrays given to a MemoryData layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.comm.world import world
from engine.config import Config
from engine.errors import DataError
from engine.feeding import Feeder
from engine.layers.base import Shape
from engine.net import Net


class Inputs:
    """Batches are copied into the arrays that net.blobs shows, so that whoever holds one sees the next batch in it."""

    def __init__(self, config: Config, phase: int, seed: int):
        self._feeder = Feeder(config, phase, seed, world())
        self._started = False
        self._memory: str | None = None  # the MemoryData layer, if there is one
        self._arrays: tuple[np.ndarray, np.ndarray] | None = None
        self._shape: Shape = ()
        self._at = 0

    def shapes_of(self, message: Any, where: str) -> list[Shape]:
        """As Feeder's."""
        if message.type != "MemoryData":
            return self._feeder.shapes_of(message, where)
        param = message.memory_data_param
        self._memory = message.name
        self._shape = (param.batch_size, param.channels, param.height, param.width)
        return [self._shape, (param.batch_size,)]

    def set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        if self._memory is None:
            raise ValueError("set_input_arrays: the net has no MemoryData layer")
        data, labels = np.asarray(data), np.asarray(labels)
        if data.dtype != np.float32 or labels.dtype != np.float32:
            raise ValueError(f"set_input_arrays: expected float32, got {data.dtype} and {labels.dtype}")
        if data.ndim != 4 or data.shape[1:] != self._shape[1:]:
            raise ValueError(f"set_input_arrays: expected data of (N, {self._shape[1:]}), got {data.shape}")
        if len(data) != labels.size or len(data) == 0 or len(data) % self._shape[0]:
            raise ValueError(
                f"set_input_arrays: expected as many labels as samples, a multiple of the batch size {self._shape[0]}; "
                f"got {labels.size} and {len(data)}"
            )
        self._arrays, self._at = (data, labels.reshape(-1)), 0

    def next(self, net: Net) -> None:
        """The next batch of every data layer."""
        if self._feeder.batch_size:
            if not self._started:
                self._feeder.start()
                self._started = True
            fed = self._feeder.take()
            for name, arrays in fed.arrays.items():
                self._copy(net, name, arrays)
        if self._memory:
            if self._arrays is None:
                raise DataError(f"layer '{self._memory}' (MemoryData) has no data; call net.set_input_arrays() first")
            batch = slice(self._at, self._at + self._shape[0])
            self._copy(net, self._memory, tuple(array[batch] for array in self._arrays))
            self._at = (self._at + self._shape[0]) % len(self._arrays[0])

    @staticmethod
    def _copy(net: Net, name: str, arrays: tuple[np.ndarray, ...]) -> None:
        layer = next(layer for layer in net.graph.layers if layer.name == name)
        for top, values in zip(layer.tops, arrays):
            np.copyto(net.fed[top], values.reshape(top.shape))
