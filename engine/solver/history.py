"""The optimizer state (momentum and the like): arenas with the offsets and layouts of the weights'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import WeightsError
from engine.host.memory import require_memory
from engine.net import Net, Placed

if TYPE_CHECKING:
    from engine.host._core import Tensor
    from engine.layers.base import Parameter


class History:
    """An arena for each of `names`, which tell what it holds (one for SGD, two for Adam and AdaDelta), zero at first.
    `arrays` are their float32 views for the updater, `named` the same by name.
    """

    def __init__(self, net: Net, names: Sequence[str]):
        from engine.host import _core

        self.net = net
        require_memory(4 * net.arena_size * len(names), "the optimizer's history", "SGD remembers least")
        self._arenas = [_core.Arena(4 * max(1, net.arena_size)) for _ in names]
        self.arrays = [np.asarray(arena, np.float32)[: net.arena_size] for arena in self._arenas]
        self.named = dict(zip(names, self.arrays, strict=True))
        self._tensors: list[dict[Parameter, Tensor]] = []
        for arena in self._arenas:
            tensors = {}
            for placed in net.parameters:
                tensors[placed.parameter] = placed.tensor.like(placed.name)
                tensors[placed.parameter].place(arena, 4 * placed.offset)
            self._tensors.append(tensors)

    def to_blobs(self, wholes: Sequence[Mapping[Parameter, np.ndarray]] = ()) -> list[np.ndarray]:
        """One array for each parameter of the net in the file's order, set after set: BVLC's SolverState.history.
        Parameters that do not learn have zeros, as Caffe writes them. wholes: for each set, of what the net has a part
        of."""
        blobs = []
        for number, tensors in enumerate(self._tensors):
            for parameter in self.net.graph.params:
                if wholes and parameter in wholes[number]:
                    blobs.append(wholes[number][parameter])
                    continue
                tensor = tensors.get(parameter)
                values = (
                    np.zeros(parameter.shape, np.float32) if tensor is None else tensor.get().reshape(parameter.shape)
                )
                blobs.append(values)
        return blobs

    def from_blobs(self, blobs: list[np.ndarray], source: str) -> None:
        """Raises WeightsError where the number or the size of the arrays is not this net's."""
        params = self.net.graph.params
        if len(blobs) != len(params) * len(self._tensors):
            raise WeightsError(
                f"{source}: {len(blobs)} history blobs, expected {len(params) * len(self._tensors)} "
                "for this net and solver type"
            )
        for number, tensors in enumerate(self._tensors):
            for parameter, values in zip(params, blobs[number * len(params) :], strict=False):
                if values.size != math.prod(parameter.whole_shape):
                    raise WeightsError(
                        f"{source}: history of {parameter.name}: expected shape {parameter.whole_shape}, "
                        f"got {tuple(values.shape)}"
                    )
                if parameter in tensors:
                    mine = parameter.part_of(values.reshape(parameter.whole_shape))
                    tensors[parameter].set(np.ascontiguousarray(mine, np.float32).ravel())

    def values(self, number: int, placed: Placed) -> np.ndarray:
        """What this rank holds of a parameter's history in one set, row-major."""
        return self._tensors[number][placed.parameter].get()
