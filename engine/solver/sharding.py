"""Sharded updates in the solver: what this rank keeps of weights and history, and the whole of it for files."""

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
    """`comm_param { shard_updates: true }`, or `mode: ASYNC`, on several ranks. weights: see ShardedWeights."""

    def __init__(self, net: Net, world: World, buckets: list[Bucket], settings: CommSettings):
        """Raises ConfigError for a net of which ranks hold layers in parts, and for a layer that rescales its weights
        where ranks keep others."""
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
        masters = self._room("float32 weights") if self._rounds or asynchronous else None
        sums = self._room("sums of gradients") if asynchronous else None
        self.weights = ShardedWeights(self.shares, arena, masters, sums)
        self.begun = False  # the masters hold what training goes on from; it is for whoever reads weights to take back

    def _room(self, what: str) -> np.ndarray:
        """For this rank's shares. Raises EngineError where there is too little memory."""
        from engine.host import _core

        count = self.shares.count
        require_memory(4 * count, f"the share of the {what}", "more ranks have smaller shares")
        return np.asarray(_core.Arena(4 * max(1, count)), np.float32)[:count]

    def begin(self) -> None:
        """Before anybody needs the masters."""
        if not self.begun:
            self.take_over()

    def take_over(self) -> None:
        """Goes on from the net's weights, the same on all ranks: before the first step from all of them, later from
        those that somebody has set since."""
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
        """Collective. The float32 weights on rank 0, where the net's are rounded; {} elsewhere."""
        if self.weights.masters is None:
            return {}
        self.begin()
        return self.gather(self.weights.masters)

    def beside_masters(self, whole: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Views of this rank's shares of an arena, each with that of the float32 weights."""
        masters = self.weights.masters
        assert masters is not None
        return [(whole[begin:end], masters[at : at + end - begin]) for begin, end, at in self.shares]

    def complete(self, whole: np.ndarray) -> None:
        """Collective. An arena of which each rank has its own shares: every rank's, on all ranks."""
        mine = np.empty(self.shares.count, np.float32)
        self.shares.take(whole, mine)
        self.shares.gather(self.world, mine, None if self.world.rank else whole)
        self.world.broadcast(whole)

    def gather(self, mine: np.ndarray) -> dict[Parameter, np.ndarray]:
        """Collective. An array of shares as whole arrays, row-major in the parameters' shapes, on rank 0; {}
        elsewhere."""
        if self.world.rank:
            self.shares.gather(self.world, mine, None)
            return {}
        whole, tensors = self._arena()
        self.shares.gather(self.world, mine, np.asarray(whole, np.float32))
        return {parameter: tensor.get().reshape(parameter.shape) for parameter, tensor in tensors.items()}

    def scatter(self, values: Mapping[Parameter, np.ndarray] | None, mine: np.ndarray) -> None:
        """Collective, the reverse. values: on rank 0."""
        if values is None:
            self.shares.scatter(self.world, None, mine)
            return
        whole, tensors = self._arena()
        for parameter, tensor in tensors.items():
            tensor.set(np.ascontiguousarray(values[parameter], np.float32).ravel())
        self.shares.scatter(self.world, np.asarray(whole, np.float32), mine)

    def _arena(self) -> tuple[Arena, dict[Parameter, Tensor]]:
        """Laid out as the net's."""
        from engine.host import _core

        arena = _core.Arena(4 * max(1, self.net.arena_size))
        return arena, tensors_in(arena, self.net)


def _round(values: np.ndarray) -> None:
    """To bfloat16, in place."""
    from engine.host import _core

    step = 1 << 20  # floats: no second arena
    for begin in range(0, values.size, step):
        chunk = values[begin : begin + step]
        packed = np.empty(chunk.size, np.uint16)
        _core.pack_bf16(chunk, packed)
        _core.unpack_bf16(packed, chunk)
