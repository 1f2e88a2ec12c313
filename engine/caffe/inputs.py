"""What the data layers of a caffe.Net are fed: batches of their sources, or of arrays given to a MemoryData layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.caffe.ranks import ranks
from engine.config import Config
from engine.errors import DataError
from engine.feeding import Feeder
from engine.layers.base import Shape
from engine.net import Net


class FedByOwner:
    """The data layers of a net that somebody else feeds, through `feed`."""

    def __init__(self, feed: Callable[[Net], object]):
        self.next = feed

    def set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        raise DataError("set_input_arrays: a solver feeds this net; give it a layer that reads from files, or Input")


class Inputs:
    """Batches are copied into the arrays that net.blobs shows, so that whoever holds one sees the next batch in it."""

    def __init__(self, config: Config, phase: int, seed: int):
        self._feeder = Feeder(config, phase, seed, ranks())
        self._started = False
        self._empty: list[str] = []  # MemoryData layers without arrays
        self._memory: str | None = None  # the first of them

    def shapes_of(self, message: Any, where: str) -> list[Shape]:
        """As Feeder's."""
        if message.type == "MemoryData" and message.name != self._memory:
            self._memory = self._memory or message.name
            self._empty.append(message.name)
        return self._feeder.shapes_of(message, where)

    def connect(self, net: Net) -> None:
        """For layers that write what they are given."""
        self._feeder.connect(net)

    def set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """data (n, c, h, w), labels of n values, for the first MemoryData layer, which begins with sample 0."""
        if self._memory is None:
            raise DataError("set_input_arrays: the net has no MemoryData layer")
        self._feeder.set_arrays(self._memory, data, labels)
        self._empty = [name for name in self._empty if name != self._memory]
        self._started = False

    def next(self, net: Net) -> None:
        """The next batch of every data layer. Raises DataError for a MemoryData layer that has nothing yet."""
        if not self._feeder.batch_size:
            return
        if self._empty:
            raise DataError(f"layer '{self._empty[0]}' (MemoryData) has no data; call net.set_input_arrays() first")
        if not self._started:
            self._feeder.start()
            self._started = True
        arrays = self._feeder.take().arrays
        for layer in net.graph.layers:
            for top, values in zip(layer.tops, arrays.get(layer.name, ())):
                np.copyto(net.fed[top], values.reshape(top.shape))
