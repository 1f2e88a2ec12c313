"""Averages of a net's outputs, and Caffe's log lines for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np


class Averages:
    """Averages of outputs by name, each batch weighted by its samples; sums in float64, in the order of add()."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self.samples = 0

    def add(self, values: Mapping[str, np.ndarray], samples: int) -> None:
        """values: by output, any shape, the same in every batch; kept flat. Raises ValueError for another one."""
        for name, value in values.items():
            weighted = np.asarray(value, np.float64).ravel() * samples
            total = self._sums.setdefault(name, np.zeros_like(weighted))
            if total.shape != weighted.shape:
                raise ValueError(f"output '{name}': expected {total.size} values as before, got {weighted.size}")
            self._sums[name] = total + weighted
        self.samples += samples

    def leave_out(self, names: Iterable[str]) -> None:
        """What was added of these outputs."""
        for name in names:
            self._sums.pop(name, None)

    def result(self) -> dict[str, np.ndarray]:
        """By name (elements,) float64; {} if nothing was added."""
        return {name: total / self.samples for name, total in self._sums.items()}


def elements(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """(name, value) for every element of every output: Caffe numbers them through."""
    for name, value in values.items():
        for element in np.ravel(value):
            yield name, float(element)


def output_lines(kind: str, values: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> Iterator[str]:
    """Lines such as `    Test net output #1: loss = 0.8 (* 1 = 0.8 loss)`; kind is "Train" or "Test", weights has the
    loss weights of outputs that are losses."""
    for number, (name, value) in enumerate(elements(values)):
        yield f"    {kind} net output #{number}: {name} = {value:g}{loss_note(weights.get(name, 0.0), value)}"


def loss_note(weight: float, value: float) -> str:
    """What follows the value of a loss in Caffe's lines."""
    return f" (* {weight:g} = {weight * value:g} loss)" if weight else ""
