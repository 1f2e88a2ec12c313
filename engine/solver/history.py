"""The optimizer state (momentum and the like), in arenas with the offsets and layouts of the weight arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import WeightsError
from engine.host.memory import require_memory
from engine.net import Net, Placed

if TYPE_CHECKING:
    from engine.host._core import Arena, Tensor
    from engine.layers.base import Parameter
    from engine.solver.sharding import Sharding


class History:
    """One arena for each of `names`, zero at first. A name tells what its arena holds: SGD has one, Adam and AdaDelta
    two. The arrays of all parameters for one name are called a set.

    With a sharding every rank holds its shares only, and take() and wholes() are collective.

    Attributes:
        arrays: float32 views of the arenas, for the updater.
        named: the same arrays by name.
    """

    def __init__(self, net: Net, names: Sequence[str], sharding: Sharding | None = None):
        from engine.host import _core

        self.net, self._sharding = net, sharding
        count = sharding.shares.count if sharding else net.arena_size
        require_memory(4 * count * len(names), "the optimizer's history", "SGD remembers least")
        self._arenas = [_core.Arena(4 * max(1, count)) for _ in names]
        self.arrays = [np.asarray(arena, np.float32)[:count] for arena in self._arenas]
        self.named = dict(zip(names, self.arrays, strict=True))
        self._tensors = [{} if sharding else tensors_in(arena, net) for arena in self._arenas]

    def to_blobs(self, wholes: Sequence[Mapping[Parameter, np.ndarray]] = ()) -> list[np.ndarray]:
        """Returns one array for each parameter in the file's order, set after set: Caffe's SolverState.history.

        Parameters that do not learn have zeros, as Caffe writes them. wholes: for each set, the whole arrays of the
        parameters of which this rank holds a part or a share."""
        blobs = []
        for number, tensors in enumerate(self._tensors):
            for parameter in self.net.own_params():
                if wholes and parameter in wholes[number]:
                    blobs.append(wholes[number][parameter])
                    continue
                tensor = tensors.get(parameter)
                values = (
                    np.zeros(parameter.shape, np.float32) if tensor is None else tensor.get().reshape(parameter.shape)
                )
                blobs.append(values)
        return blobs

    def fit(self, blobs: Sequence[np.ndarray], source: str) -> list[dict[Parameter, np.ndarray]]:
        """Sorts arrays in the order of to_blobs() by set and parameter. Raises WeightsError if their number or sizes do
        not fit this net."""
        params = self.net.own_params()
        if len(blobs) != len(params) * len(self._tensors):
            raise WeightsError(
                f"{source}: {len(blobs)} history blobs, expected {len(params) * len(self._tensors)} "
                "for this net and solver type; a state is continued with the type that wrote it, --weights begins anew "
                "from its weights"
            )
        begins = [number * len(params) for number in range(len(self._tensors))]
        sets = [dict(zip(params, blobs[at : at + len(params)])) for at in begins]
        for parameter, values in (item for each in sets for item in each.items()):
            if values.size != math.prod(parameter.whole_shape):
                raise WeightsError(
                    f"{source}: history of {parameter.name}: expected shape {parameter.whole_shape}, "
                    f"got {tuple(values.shape)}"
                )
        return sets

    def take(self, sets: Sequence[Mapping[Parameter, np.ndarray]] | None) -> None:
        """Takes over the values of a snapshot. sets: what fit() returned; None on ranks that get their shares from
        rank 0."""
        if sets is None:
            assert self._sharding
            for array in self.arrays:
                self._sharding.scatter(None, array)
            return
        for values, tensors, array in zip(sets, self._tensors, self.arrays, strict=False):
            if self._sharding:
                self._sharding.scatter(values, array)
            for parameter, tensor in tensors.items():
                mine = parameter.part_of(values[parameter].reshape(parameter.whole_shape))
                tensor.set(np.ascontiguousarray(mine, np.float32).ravel())

    def wholes(self) -> list[dict[Parameter, np.ndarray]]:
        """Returns each set's whole arrays on rank 0, gathered from the shares of all ranks. A set is {} on other ranks,
        and where updates are not sharded."""
        return [self._sharding.gather(array) if self._sharding else {} for array in self.arrays]

    def values(self, number: int, placed: Placed) -> np.ndarray:
        """Returns what this rank holds of a parameter's history, in set `number`, row-major."""
        return self._tensors[number][placed.parameter].get()


def tensors_in(arena: Arena, net: Net) -> dict[Parameter, Tensor]:
    """Returns a tensor for each parameter, placed in an arena that is laid out as the net's weights."""
    found = {}
    for placed in net.parameters:
        found[placed.parameter] = placed.tensor.like(placed.name)
        found[placed.parameter].place(arena, 4 * placed.offset)
    return found
