"""The average of the weights over a run (`ema`), which tests score and snapshots hold beside the weights."""

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

_CHUNK = 2**14  # floats: what is computed on the way stays in a cache, and needs no fresh pages
_EARLY = 9  # of the first updates, the average keeps n / (n + _EARLY): what training began with is soon forgotten


class WeightAverage:
    """An exponential moving average of a net's weights, and of BatchNorm's statistics.

    Statistics are taken in at the end of a step, weights when the updates of the step are over: catch_up(), which the
    next step calls before its backward. `weights` is laid out as the net's arena. Where each rank keeps a share of the
    weights in float32, which the net has rounded, a rank keeps that share of the average up to date: gather() before
    anybody looks. is_rescaled: forward changes weights, so that they are to be taken in before it, when tests and
    snapshots see them.
    """

    def __init__(self, net: Net, weights: np.ndarray, decay: float, sharding: Sharding | None = None):
        """weights: the net's arena, float32. decay: what an update keeps of the average."""
        self.net, self.decay = net, decay
        self.history = History(net, ["the average of the weights"])
        (self.weights,) = self.history.arrays
        self._live = weights
        self._sharding = sharding if sharding and sharding.weights.masters is not None else None
        self._tensors = {each: net.tensor_of[each] for each in net.graph.params if each.statistics}
        self._statistics = {each: np.zeros_like(tensor.get()) for each, tensor in self._tensors.items()}
        self._due: np.float32 | None = None  # the share of the weights that are to be taken in
        self.begun = False
        self.is_rescaled = any(layer.rescales_weights for layer in net.graph.layers)

    def step(self, iteration: int) -> None:
        """After the backward pass of an iteration, with the first of which the average begins: see `begun`."""
        share = np.float32(1 - min(self.decay, iteration / (iteration + _EARLY)))
        for parameter, average in self._statistics.items():
            _approach(average, self._tensors[parameter].get(), share)
        self._due, self.begun = share, True

    def catch_up(self) -> None:
        """When no update is under way."""
        if self._due is None:
            return
        with undisturbed():
            for average, live in self._pairs():
                for begin in range(0, average.size, _CHUNK):
                    chunk = slice(begin, begin + _CHUNK)
                    _approach(average[chunk], live[chunk], self._due)
            self._due = None

    def _pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Views of what this rank keeps up to date, and of what that approaches."""
        if self._sharding is None:
            return [(self.weights, self._live)]
        return self._sharding.beside_masters(self.weights)

    def gather(self) -> None:
        """Collective, after catch_up(): `weights` are whole on all ranks."""
        if self._sharding:
            self._sharding.complete(self.weights)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Meanwhile the net has the average in place of its weights, if there is one yet; call catch_up() before."""
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
        """Of BatchNorm, each rank's own, to be averaged over the ranks."""
        return list(self._statistics.values())

    # Snapshots

    def start_over(self, iteration: int) -> None:
        """On every rank, when rank 0 has read a snapshot of an iteration: what was due is of weights that are gone."""
        self.begun, self._due = iteration > 0, None

    def to_blobs(self, wholes: dict[Parameter, np.ndarray]) -> list[np.ndarray]:
        """As History.to_blobs(). wholes: of the parameters that this rank has a part of."""
        blobs = self.history.to_blobs([wholes])
        for index, parameter in enumerate(self.net.graph.params):
            if parameter in self._statistics:
                blobs[index] = self._statistics[parameter].reshape(parameter.shape)
        return blobs

    def take(self, values: Mapping[Parameter, np.ndarray] | None) -> None:
        """values: of a snapshot, by parameter; None: it has none, and the average begins with the net's weights."""
        if values is None:
            self.weights[:] = self._live
        else:
            self.history.take([values])
        for parameter, average in self._statistics.items():
            found = self._tensors[parameter].get() if values is None else values[parameter]
            average[:] = found.reshape(average.shape)


def _approach(average: np.ndarray, values: np.ndarray, share: np.float32) -> None:
    if share == 1:  # of the first update: whatever stood there, no bit of it stays
        average[...] = values
    else:
        average += share * (values - average)
