"""Feeds the data layers of a caffe.Net, by batches of their sources or by arrays given to a MemoryData layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from engine import proto
from engine.caffe.ranks import ranks
from engine.config import NetConfig
from engine.data.feeder import Feeder
from engine.data.prefetch import Batch
from engine.errors import ConfigError, DataError
from engine.layers.base import Layer, Shape
from engine.net import Counters, Net


class FedBySolver:
    """Feeds the data layers of a solver's net by the solver's feeder.

    start: starts the feeder, if it is not running, from the sample that `position` returns.
    refusal: why scripts may not run the net; "" if they may.
    count: counts a batch as the solver counts its own; it takes the number of the batch's first sample.
    """

    def __init__(
        self,
        feeder: Feeder,
        start: Callable[[], None],
        position: Callable[[], int],
        refusal: str = "",
        count: Callable[[int], Counters] | None = None,
    ):
        self._feeder, self._start, self._position, self._refusal = feeder, start, position, refusal
        self._count, self._counters = count, None
        weakref.finalize(self, feeder.close)  # a script may have started it again after the solver's end

    def next(self, net: Net, layers: Sequence[Layer]) -> Counters | None:
        """Does the same as Inputs.next(). Raises ConfigError if scripts may not run the net."""
        if self._refusal:
            raise ConfigError(self._refusal)
        if not _includes_first(self._feeder, net, layers):
            return self._counters
        if not self._feeder.running:
            self._start()
        first_sample = self._feeder.next(net)
        self._counters = self._count(first_sample) if self._count else None
        return self._counters

    def set_arrays(self, net: Net, data: np.ndarray, labels: np.ndarray) -> None:
        """Does the same as Inputs.set_arrays(), but the layer goes on with the sample that the solver has come to."""
        self._feeder.set_arrays(_memory_layer(net), data, labels, self._position())
        self._feeder.stop()


class Inputs:
    """Feeds the data layers of a net that a script has made. Batches are copied into the arrays of net.blobs, so that
    whoever holds such an array sees the next batch in it."""

    def __init__(self, config: NetConfig, phase: int, seed: int):
        self._feeder = Feeder(config, phase, seed, ranks())
        weakref.finalize(self, self._feeder.close)
        self._empty: set[str] = set()  # MemoryData layers without arrays

    def shapes_of(self, message: proto.LayerParameter, where: str) -> list[Shape]:
        """Returns what Feeder.shapes_of() does, and notes MemoryData layers that have no arrays yet."""
        if message.type == "MemoryData" and not self._feeder.batch_size:
            self._empty.add(message.name)
        return self._feeder.shapes_of(message, where)

    def connect(self, net: Net) -> None:
        """Connects the feeder to layers that write the data they are given: see Feeder.connect()."""
        self._feeder.connect(net)

    def set_arrays(self, net: Net, data: np.ndarray, labels: np.ndarray) -> None:
        """Gives data (n, c, h, w) and n labels to the first MemoryData layer, which begins with sample 0. Raises
        DataError if there is no such layer, or for other shapes."""
        layer = _memory_layer(net)
        self._feeder.set_arrays(layer, data, labels)
        self._feeder.stop()
        self._empty.discard(layer)

    def next(self, net: Net, layers: Sequence[Layer]) -> None:
        """Feeds the next batch to every data layer, if the first of them is among `layers`.

        Returns the counters of the pass, from which its randomness follows; None: the net counts its passes itself, as
        always here. Raises DataError for a MemoryData layer without arrays."""
        if not self._feeder.batch_size or not _includes_first(self._feeder, net, layers):
            return
        for name in self._empty:
            raise DataError(f"layer '{name}' (MemoryData) has no data; call net.set_input_arrays() first")
        if not self._feeder.running:
            self._feeder.start()
        arrays = cast(Batch, self._feeder.take()).arrays  # endless: never None
        for layer in net.graph.layers:
            for top, values in zip(layer.tops, arrays.get(layer.name, ())):
                np.copyto(net.fed[top], values.reshape(top.shape))


def _includes_first(feeder: Feeder, net: Net, layers: Sequence[Layer]) -> bool:
    """Returns whether `layers` has the first data layer (all data layers go on together with it) or, in a net without
    data layers, the first layer."""
    name = next(iter(feeder.batch_sizes), net.written[0].name)
    return any(layer.name == name for layer in layers)


def _memory_layer(net: Net) -> str:
    """Returns the name of the first MemoryData layer. Raises DataError if there is none."""
    for layer in net.graph.layers:
        if layer.type == "MemoryData":
            return layer.name
    raise DataError("set_input_arrays: the net has no MemoryData layer")
