"""Averages the outputs of a net, and writes Caffe's log lines for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np


class Averages:
    """Averages outputs by name, where each batch has the weight of its samples. It sums in float64, in the order of
    add()."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self.samples = 0

    def add(self, values: Mapping[str, np.ndarray], samples: int) -> None:
        """Adds a batch. values: arrays by output, in any shape, which are kept flat. Raises ValueError if one has
        another number of values than in earlier batches."""
        for name, value in values.items():
            weighted = np.asarray(value, np.float64).ravel() * samples
            total = self._sums.setdefault(name, np.zeros_like(weighted))
            if total.shape != weighted.shape:
                raise ValueError(f"output '{name}': expected {total.size} values as before, got {weighted.size}")
            self._sums[name] = total + weighted
        self.samples += samples

    def leave_out(self, names: Iterable[str]) -> None:
        """Forgets these outputs."""
        for name in names:
            self._sums.pop(name, None)

    def result(self) -> dict[str, np.ndarray]:
        """Returns the averages by name, float64 (elements); {} if nothing was added."""
        return {name: total / self.samples for name, total in self._sums.items()}


def elements(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """Yields (name, value) for every element of every output, in the order in which Caffe numbers them."""
    for name, value in values.items():
        for element in np.ravel(value):
            yield name, float(element)


def output_lines(kind: str, values: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> Iterator[str]:
    """Yields lines such as `    Test net output #1: loss = 0.8 (* 1 = 0.8 loss)`.

    Args:
        kind: "Train" or "Test".
        values: arrays by output.
        weights: loss weights of the outputs that are losses.
    """
    for number, (name, value) in enumerate(elements(values)):
        yield f"    {kind} net output #{number}: {name} = {value:g}{loss_note(weights.get(name, 0.0), value)}"


def loss_note(weight: float, value: float) -> str:
    """Returns what follows the value of a loss in Caffe's lines; "" for an output that is no loss (weight 0)."""
    return f" (* {weight:g} = {weight * value:g} loss)" if weight else ""
