"""Finds the outputs of a net that have a row for each sample of a batch, and averages them over it: batches may differ
in size. A loss, or the accuracies by class, are averages already."""

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
    """Averages outputs of a net. It compares their shapes with those in the net with twice the batch, which it builds
    when it first meets an output that is no single number."""

    def __init__(
        self, config: NetConfig, outputs: Iterable[Blob], shapes_for: Callable[[int], ShapesOf], batch_size: int
    ):
        """Remembers the shapes of outputs.

        Args:
            outputs: of the net that was built from `config`.
            shapes_for: returns the shapes that data layers give in batches of a size.
            batch_size: of the data layers in that net; 0 if it has none.
        """
        self._config, self._shapes_for, self._batch_size = config, shapes_for, batch_size
        self._once = {blob.name: blob.shape for blob in outputs}

    def averaged(self, name: str, value: np.ndarray) -> np.ndarray:
        """Returns an output as float64 (elements), averaged over its samples if it has a row for each."""
        value = np.asarray(value, np.float64)
        by_sample = value.ndim > 0 and name in self._by_sample
        return (value.mean(axis=0) if by_sample else value).ravel()

    def grows_otherwise(self, name: str) -> Shape | None:
        """Returns the shape of an output that grows with the batch, but not by a row for each sample; None for any
        other output. Such an output has no average over batches of several sizes."""
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
        """The shapes of the outputs with twice the batch.

        They are guessed if the net does not build with that batch, or has Python layers, whose code is not run for
        this: an output with as many rows as the batch has samples counts as having one for each, except accuracies."""
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
