"""Model parallelism: a layer of which each rank of a group holds a part of the output channels.

    bottom (N, C, ...) of this rank  --gather-->  (parts N, C, ...) of the group  --kernel-->  (parts N, O / parts, ...)
      --exchange-->  top (N, O, ...) of this rank

Backward goes the other way: gradients of tops are exchanged, those of bottoms are summed over the group, and each rank
gets its own. So the layers before and after it see the batches of data-parallel training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    from engine.host._core import Tensor
    from engine.layers.base import Blob, Layer
    from engine.layers.builder import Builder


class Group(Protocol):
    """The ranks that hold the parts of one copy of a layer. All of them must make the same calls in the same order.
    Arrays are C-contiguous float32. One that has a block for each rank has the blocks one after the other."""

    def allgather(self, mine: np.ndarray, all: np.ndarray) -> None:
        """Gives every rank the blocks of all ranks. mine: this rank's block. all: receives a block from each."""

    def alltoall(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        """Sends each rank its block. mine: a block for each rank. theirs: receives a block from each."""

    def reduce_scatter(self, mine: np.ndarray, sums: np.ndarray) -> None:
        """Sums blocks over the ranks. mine: a block for each rank. sums: receives the sum of this rank's block."""


@dataclass(frozen=True)
class Part:
    """Part `index` of `count`, held by a rank of `group`."""

    index: int
    count: int
    group: Group


def gather(builder: Builder, layer: Layer, tensor: Tensor, part: Part) -> Tensor:
    """Adds an op that gathers the bottoms (N, ...) of all ranks of the group. Returns its output, (count N, ...)."""
    mine = builder.plain(layer, tensor)
    shape = (part.count * mine.shape[0], *mine.shape[1:])

    def run(backward: bool) -> None:
        if backward:
            part.group.reduce_scatter(_values(every.diff), _values(mine.diff))
        else:
            part.group.allgather(_values(mine), _values(every))

    every = builder.op("Python", layer, [mine], {"run": run}, params=[], tops=[], shapes=[shape])[0]
    return every


def exchange(builder: Builder, layer: Layer, tensor: Tensor, part: Part, top: Blob) -> None:
    """Adds an op that turns a part of the channels for all samples of the group, (count N, O / count, ...), into all
    channels for this rank's samples, the top (N, O, ...)."""
    channels = builder.plain(layer, tensor)
    blocks = (part.count, top.shape[0], top.shape[1] // part.count, int(np.prod(top.shape[2:], dtype=int)))

    def run(backward: bool) -> None:
        if backward:
            sent = np.ascontiguousarray(_values(samples.diff).reshape(_by_sample(blocks)).swapaxes(0, 1))
            part.group.alltoall(sent, _values(channels.diff))
        else:
            received = np.empty(blocks, np.float32)
            part.group.alltoall(_values(channels), received)
            _values(samples).reshape(_by_sample(blocks))[...] = received.swapaxes(0, 1)

    samples = builder.op("Python", layer, [channels], {"run": run}, params=[], tops=[top])[0]


def _by_sample(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Returns (N, parts, channels, pixels) of (parts, N, channels, pixels)."""
    return (blocks[1], blocks[0], *blocks[2:])


def _values(tensor: Tensor) -> np.ndarray:
    """Returns a view of a row-major tensor's values, to be read and written in place."""
    return cast(np.ndarray, tensor.view())
