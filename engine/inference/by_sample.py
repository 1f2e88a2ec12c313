"""Which outputs of a net have a row for each sample of a batch: these are averaged over it, for batches can differ in
size; a loss, or the accuracies by class, are averages already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.errors import EngineError
from engine.graph.build import ShapesOf, build

if TYPE_CHECKING:
    from engine.config import NetConfig
    from engine.layers.base import Blob, Shape


class BySample:
    """Of a net's outputs, by name. What grows with the batch is seen from the net with twice the batch; it is built
    when an output that is no single number is first asked for."""

    def __init__(
        self, config: NetConfig, outputs: Iterable[Blob], shapes_for: Callable[[int], ShapesOf], batch_size: int
    ):
        """outputs: of the net that was built from `config`. shapes_for: the shapes that data layers give in batches of
        a size. batch_size: theirs in that net; 0 without them."""
        self._config, self._shapes_for, self._batch_size = config, shapes_for, batch_size
        self._once = {blob.name: blob.shape for blob in outputs}

    def averaged(self, name: str, value: np.ndarray) -> np.ndarray:
        """(elements,) float64: an output, averaged over its samples where it has a row for each."""
        value = np.asarray(value, np.float64)
        by_sample = value.ndim > 0 and name in self._by_sample
        return (value.mean(axis=0) if by_sample else value).ravel()

    def grows_otherwise(self, name: str) -> Shape | None:
        """The shape of an output that grows with the batch, but not by a row for each sample; else None. It has no
        average over batches of several sizes."""
        shape = self._once.get(name)
        return None if name in self._by_sample or self._twice.get(name) == shape else shape

    @cached_property
    def _by_sample(self) -> set[str]:
        if not self._batch_size:
            return set()
        return {
            name
            for name, shape in self._once.items()
            if shape[:1] == (self._batch_size,) and self._twice.get(name) == (2 * self._batch_size, *shape[1:])
        }

    @cached_property
    def _twice(self) -> dict[str, Shape]:
        """The shapes of the outputs with twice the batch. Where the net holds its batch fixed, or has layers of Python,
        whose code is not run for this, every output of as many rows is taken to have a row for each sample, but for the
        accuracies by class."""
        message, size = self._config.message, 2 * self._batch_size
        if all(layer.type != "Python" for layer in message.layer):
            with suppress(EngineError):
                graph = build(self._config, proto.TEST, shapes_of=self._shapes_for(size))
                return {blob.name: blob.shape for blob in graph.outputs}
        fixed = {top for layer in message.layer if layer.type == "Accuracy" for top in layer.top}
        return {
            name: (2 * shape[0], *shape[1:]) if shape[:1] == (self._batch_size,) and name not in fixed else shape
            for name, shape in self._once.items()
        }
