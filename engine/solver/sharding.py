"""Sharded updates in the solver: the shares of weights and history that this rank keeps, and whole arrays for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.comm.buckets import Bucket
from engine.comm.shares import ShardedWeights, Shares
from engine.errors import ConfigError
from engine.host.memory import require_memory
from engine.net import Net
from engine.solver.history import tensors_in

if TYPE_CHECKING:
    from engine.comm.settings import CommSettings
    from engine.comm.world import World
    from engine.host._core import Arena, Tensor
    from engine.layers.base import Parameter


class Sharding:
    """The shares of each rank with `comm_param { shard_updates: true }`, or `mode: ASYNC`, on several ranks.

    The masters are float32 weights of this rank's shares, from which updates go on where the net's weights cannot
    serve: with BF16 these are rounded, in mode ASYNC they may be of an older version.

    Attributes:
        weights: see ShardedWeights.
        begun: whether the masters hold the weights. Whoever reads weights from a file must set it to False.
    """

    def __init__(self, net: Net, world: World, buckets: list[Bucket], settings: CommSettings):
        """Raises ConfigError for model parallelism, and for a layer that rescales its weights where there are
        masters, which would not be rescaled."""
        self._rounds, asynchronous = settings.reduction.bf16, settings.max_staleness is not None
        if any(bucket.parts > 1 for bucket in buckets):
            raise ConfigError(
                "comm_param { shard_updates } does not go together with model_parallel: take one of them out"
            )
        rescaled = next((layer for layer in net.graph.layers if layer.rescales_weights), None)
        if rescaled is not None and (self._rounds or asynchronous):
            raise rescaled.error(
                "brings its weights to length 1 in each forward, and ranks keep others that are updated: it does not "
                "go together with comm_param { shard_updates } and BF16, or mode: ASYNC"
            )
        self.net, self.world = net, world
        self.shares = Shares(buckets, settings.chunk_bytes, world.rank, world.size)
        arena = np.asarray(net.weights, np.float32)[: net.arena_size]
        masters = self._allocate("float32 weights") if self._rounds or asynchronous else None
        sums = self._allocate("sums of gradients") if asynchronous else None
        self.weights = ShardedWeights(self.shares, arena, masters, sums)
        self.begun = False

    def _allocate(self, what: str) -> np.ndarray:
        """Returns a float32 array for this rank's shares. Raises EngineError if there is too little memory."""
        from engine.host import _core

        count = self.shares.count
        require_memory(4 * count, f"the share of the {what}", "more ranks have smaller shares")
        return np.asarray(_core.Arena(4 * max(1, count)), np.float32)[:count]

    def begin(self) -> None:
        """Makes the masters hold the weights, if they do not yet. Call it before they are used."""
        if not self.begun:
            self.take_over()

    def take_over(self) -> None:
        """Takes the net's weights, the same on all ranks, into the masters: before the first step all of them. Later,
        with BF16, only those that somebody has set: a weight that is still its master, rounded, keeps its master."""
        masters = self.weights.masters
        if masters is None:
            return
        mine = np.empty_like(masters)
        self.shares.take(self.weights.weights, mine)
        if self.begun and self._rounds:
            rounded = masters.copy()
            _round(rounded)
            changed = rounded != mine
            masters[changed] = mine[changed]
        else:
            masters[:] = mine
        self.begun = True
        if self._rounds:
            _round(self.weights.weights)

    def whole_weights(self) -> dict[Parameter, np.ndarray]:
        """Collective. Returns the whole float32 weights on rank 0; {} on other ranks, and if there are no masters."""
        if self.weights.masters is None:
            return {}
        self.begin()
        return self.gather(self.weights.masters)

    def beside_masters(self, whole: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns (share of the arena `whole`, share of the masters): views, for each of this rank's shares."""
        masters = self.weights.masters
        assert masters is not None
        return [(whole[begin:end], masters[at : at + end - begin]) for begin, end, at in self.shares]

    def complete(self, whole: np.ndarray) -> None:
        """Collective. Completes an arena of which each rank has its own shares alone, on all ranks."""
        mine = np.empty(self.shares.count, np.float32)
        self.shares.take(whole, mine)
        self.shares.gather(self.world, mine, None if self.world.rank else whole)
        self.world.broadcast(whole)

    def gather(self, mine: np.ndarray) -> dict[Parameter, np.ndarray]:
        """Collective. Gathers an array of shares. Returns whole arrays, row-major in the parameters' shapes, on rank 0;
        {} on other ranks."""
        if self.world.rank:
            self.shares.gather(self.world, mine, None)
            return {}
        whole, tensors = self._arena()
        self.shares.gather(self.world, mine, np.asarray(whole, np.float32))
        return {parameter: tensor.get().reshape(parameter.shape) for parameter, tensor in tensors.items()}

    def scatter(self, values: Mapping[Parameter, np.ndarray] | None, mine: np.ndarray) -> None:
        """Collective. Does the reverse of gather(). values: whole arrays on rank 0, None on other ranks. mine: receives
        this rank's shares."""
        if values is None:
            self.shares.scatter(self.world, None, mine)
            return
        whole, tensors = self._arena()
        for parameter, tensor in tensors.items():
            tensor.set(np.ascontiguousarray(values[parameter], np.float32).ravel())
        self.shares.scatter(self.world, np.asarray(whole, np.float32), mine)

    def _arena(self) -> tuple[Arena, dict[Parameter, Tensor]]:
        """Returns an arena that is laid out as the net's weights, and its tensors."""
        from engine.host import _core

        arena = _core.Arena(4 * max(1, self.net.arena_size))
        return arena, tensors_in(arena, self.net)


def _round(values: np.ndarray) -> None:
    """Rounds float32 values to bfloat16, in place."""
    from engine.host import _core

    step = 1 << 20  # floats at a time, so that it takes no second arena
    for begin in range(0, values.size, step):
        chunk = values[begin : begin + step]
        packed = np.empty(chunk.size, np.uint16)
        _core.pack_bf16(chunk, packed)
        _core.unpack_bf16(packed, chunk)
