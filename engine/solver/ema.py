"""The average of the weights over a run (`ema`): tests score it, and snapshots hold it beside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.host.interrupts import undisturbed
from engine.solver.history import History

if TYPE_CHECKING:
    from engine.layers.base import Parameter
    from engine.net import Net
    from engine.solver.sharding import Sharding

_CHUNK = 2**14  # floats that are computed at once: intermediate values stay in a cache, and need no fresh pages
_EARLY = 9  # early on, update n keeps n / (n + _EARLY) of the average: the initial weights are soon forgotten


class WeightAverage:
    """An exponential moving average of a net's weights, and of BatchNorm's statistics.

    The end of a step adds the statistics to the average: step(). The weights are added when their updates are over:
    catch_up(), which the next step calls before its backward.

    With sharded updates in BF16 the net's weights are rounded, and each rank has the float32 weights of its shares
    alone. It then keeps those shares of the average up to date, and gather() completes the others before a test or a
    snapshot.

    Attributes:
        weights: the average, float32, laid out as the net's arena.
        begun: whether there is an average yet: from the end of the first iteration on.
        is_rescaled: a layer's forward changes weights. The average is to take them in before the next forward, as
            tests and snapshots see them.
    """

    def __init__(self, net: Net, weights: np.ndarray, decay: float, sharding: Sharding | None = None):
        """weights: the net's arena, float32. decay: the fraction of the average that an update keeps."""
        self.net, self.decay = net, decay
        self.history = History(net, ["the average of the weights"])
        (self.weights,) = self.history.arrays
        self._live = weights
        self._sharding = sharding if sharding and sharding.weights.masters is not None else None
        self._tensors = {each: net.tensor_of[each] for each in net.graph.params if each.statistics}
        self._statistics = {each: np.zeros_like(tensor.get()) for each, tensor in self._tensors.items()}
        self._due: np.float32 | None = None  # the fraction of the live weights that catch_up() is to add
        self.begun = False
        self.is_rescaled = any(layer.rescales_weights for layer in net.graph.layers)

    def step(self, iteration: int) -> None:
        """Adds the statistics after the backward of an iteration, and leaves the weights to catch_up()."""
        fraction = np.float32(1 - min(self.decay, iteration / (iteration + _EARLY)))
        for parameter, average in self._statistics.items():
            _approach(average, self._tensors[parameter].get(), fraction)
        self._due, self.begun = fraction, True

    def catch_up(self) -> None:
        """Adds the weights of the last step, if that is not done yet. No update may be under way."""
        if self._due is None:
            return
        with undisturbed():
            for average, live in self._pairs():
                for begin in range(0, average.size, _CHUNK):
                    chunk = slice(begin, begin + _CHUNK)
                    _approach(average[chunk], live[chunk], self._due)
            self._due = None

    def _pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns (average, live weights): views of the ranges that this rank keeps up to date."""
        if self._sharding is None:
            return [(self.weights, self._live)]
        return self._sharding.beside_masters(self.weights)

    def gather(self) -> None:
        """Collective, after catch_up(). Completes `weights` on all ranks, where each has had its shares alone."""
        if self._sharding:
            self._sharding.complete(self.weights)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lets the net use the average in place of its weights inside the context, if there is an average yet. Call
        catch_up() before."""
        if self.begun:
            with undisturbed():
                self._swap()
        try:
            yield
        finally:
            if self.begun:
                with undisturbed():
                    self._swap()

    def _swap(self) -> None:
        for begin in range(0, self.weights.size, _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            kept = self._live[chunk].copy()
            self._live[chunk] = self.weights[chunk]
            self.weights[chunk] = kept
        for parameter, tensor in self._tensors.items():
            kept = tensor.get()
            tensor.set(self._statistics[parameter])
            self._statistics[parameter] = kept

    def statistics(self) -> list[np.ndarray]:
        """Returns the averages of BatchNorm's statistics; each rank has its own, to be averaged over the ranks."""
        return list(self._statistics.values())

    # Snapshots

    def start_over(self, iteration: int) -> None:
        """Drops what catch_up() was to add, after a snapshot of `iteration` has been read: those weights are gone."""
        self.begun, self._due = iteration > 0, None

    def to_blobs(self, wholes: dict[Parameter, np.ndarray]) -> list[np.ndarray]:
        """Returns one array for each parameter, as History.to_blobs() does. wholes: the whole averages of the
        parameters of which this rank holds a part."""
        blobs = self.history.to_blobs([wholes])
        for index, parameter in enumerate(self.net.graph.params):
            if parameter in self._statistics:
                blobs[index] = self._statistics[parameter].reshape(parameter.shape)
        return blobs

    def take(self, values: Mapping[Parameter, np.ndarray] | None) -> None:
        """Takes over the average of a snapshot. values: it, by parameter; None if the snapshot has none: then the
        average begins with the net's weights."""
        if values is None:
            self.weights[:] = self._live
        else:
            self.history.take([values])
        for parameter, average in self._statistics.items():
            found = self._tensors[parameter].get() if values is None else values[parameter]
            average[:] = found.reshape(average.shape)


def _approach(average: np.ndarray, values: np.ndarray, fraction: np.float32) -> None:
    """Moves the average towards the values by this fraction of the distance."""
    if fraction == 1:  # the first update: the sum below would leave rounding errors, or a NaN that stood there
        average[...] = values
    else:
        average += fraction * (values - average)
