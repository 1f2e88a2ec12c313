"""Which outputs of a net have a row for each sample of a batch: these are averaged over it, for batches can differ in
size; a loss, or the accuracies by class, are averages already."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError
from engine.graph.build import TEST, Graph, ShapesOf, build

if TYPE_CHECKING:
    from engine.config import NetConfig
    from engine.layers.base import Shape


class BySample:
    """Of a net's outputs, by name. What grows with the batch is seen from the net with twice the batch; it is built
    when an output that is no single number is first asked for."""

    def __init__(self, config: NetConfig, shapes_for: Callable[[int], ShapesOf], batch_size: int):
        """shapes_for: the shapes that data layers give in batches of a size. batch_size: 0 for a net without them."""
        self._config, self._shapes_for, self._batch_size = config, shapes_for, batch_size

    def averaged(self, name: str, value: np.ndarray) -> np.ndarray:
        """(elements,) float64: an output, averaged over its samples where it has a row for each."""
        value = np.asarray(value, np.float64)
        by_sample = value.ndim > 0 and name in self._by_sample
        return (value.mean(axis=0) if by_sample else value).ravel()

    def grows_otherwise(self, name: str) -> Shape | None:
        """The shape of an output that grows with the batch, but not by a row for each sample; else None. It has no
        average over batches of several sizes."""
        once, twice = self._once_and_twice
        return None if name in self._by_sample or twice.get(name) == once.get(name) else once.get(name)

    @cached_property
    def _by_sample(self) -> set[str]:
        if not self._batch_size:
            return set()
        once, twice = self._once_and_twice
        return {
            name
            for name, shape in once.items()
            if shape[:1] == (self._batch_size,) and twice.get(name) == (2 * self._batch_size, *shape[1:])
        }

    @cached_property
    def _once_and_twice(self) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """The shapes of the outputs. Of a net that holds its batch fixed every output of as many rows is taken to have
        a row for each sample, but for the accuracies by class."""
        graph = self._build(self._batch_size)
        once = {blob.name: blob.shape for blob in graph.outputs}
        try:
            return once, {blob.name: blob.shape for blob in self._build(2 * self._batch_size).outputs}
        except EngineError:
            fixed = {top.name for layer in graph.layers if layer.type == "Accuracy" for top in layer.tops}
            return once, {
                name: (2 * shape[0], *shape[1:]) for name, shape in once.items() if shape and name not in fixed
            }

    def _build(self, batch_size: int) -> Graph:
        state = self._config.message.state
        return build(self._config, TEST, level=state.level, stages=state.stage, shapes_of=self._shapes_for(batch_size))
