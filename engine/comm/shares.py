"""Sharded updates: which floats of the arenas each rank updates, and flat arrays of its shares alone.

A rank's share of a chunk is the share whose gradients it sums when they are reduced: it updates that, and sends the new
weights to the others instead of the sum. What it remembers of its shares (optimizer's state, float32 weights) lies in
arrays of its shares alone, one after the other in the order of the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.comm.buckets import Bucket, chunk_bounds

if TYPE_CHECKING:
    from engine.comm.world import World

ALIGNMENT = 32  # floats: bfloat16 in a cache line


def bounds_of_share(count: int, ranks: int, rank: int) -> tuple[int, int]:
    """Returns [begin, end) of one rank's share of `count` floats. Shares are whole cache lines; the last ranks' may be
    shorter, or empty."""
    share = -(-count // ranks)
    share = -(-share // ALIGNMENT) * ALIGNMENT
    return min(count, rank * share), min(count, (rank + 1) * share)


def bounds_of_shares(count: int, ranks: int) -> list[tuple[int, int]]:
    """Returns bounds_of_share() of every rank."""
    return [bounds_of_share(count, ranks, rank) for rank in range(ranks)]


class Share(NamedTuple):
    """A rank's share of a chunk: floats [begin, end) of the arena. at: where they begin in the arrays of shares."""

    begin: int
    end: int
    at: int


class Shares:
    """The shares of one rank, `count` floats in all. Iterates over them in the order of the arena."""

    def __init__(self, buckets: Sequence[Bucket], chunk_bytes: int, rank: int, ranks: int):
        self.rank, self.ranks, self._buckets, self._chunk_bytes = rank, ranks, list(buckets), chunk_bytes
        self._of_bucket = self._of(rank)
        self._of_chunk = {
            chunk[0]: share
            for bucket, shares in zip(self._buckets, self._of_bucket, strict=True)
            for chunk, share in zip(chunk_bounds(bucket, chunk_bytes), shares, strict=True)
        }
        self.count = sum(share.end - share.begin for shares in self._of_bucket for share in shares)

    def _of(self, rank: int) -> list[list[Share]]:
        """Returns the shares of any rank: for each bucket, one for each chunk."""
        found, at = [], 0
        for bucket in self._buckets:
            found.append([])
            for begin, end in self._bounds(bucket, rank):
                found[-1].append(Share(begin, end, at))
                at += end - begin
        return found

    def _bounds(self, bucket: Bucket, rank: int) -> Iterator[tuple[int, int]]:
        """Yields [begin, end) of any rank's share of each chunk of a bucket, in floats of the arena."""
        for begin, end in chunk_bounds(bucket, self._chunk_bytes):
            first, last = bounds_of_share(end - begin, self.ranks, rank)
            yield begin + first, begin + last

    def of_bucket(self, index: int) -> list[Share]:
        """Returns this rank's shares of a bucket, one for each chunk; some may be empty."""
        return self._of_bucket[index]

    def of_chunk(self, begin: int) -> Share:
        """Returns this rank's share of the chunk that begins at a float of the arena."""
        return self._of_chunk[begin]

    def __iter__(self) -> Iterator[Share]:
        return chain.from_iterable(self._of_bucket)

    def take(self, whole: np.ndarray, mine: np.ndarray) -> None:
        """Copies this rank's shares of an arena, `whole`, to an array of shares, `mine`."""
        for begin, end, at in self:
            mine[at : at + end - begin] = whole[begin:end]

    # Collective. They go bucket by bucket, so that no rank but rank 0 needs memory for a whole arena.

    def gather(self, world: World, mine: np.ndarray, whole: np.ndarray | None) -> None:
        """Copies every rank's shares, `mine`, into an arena of rank 0, `whole`; None on other ranks."""
        for bucket, shares in zip(self._buckets, self._of_bucket, strict=True):
            first, last = shares[0].at, shares[-1].at + shares[-1].end - shares[-1].begin
            found = world.gather_array(mine[first:last])
            if found is None or whole is None:
                continue
            for rank, values in enumerate(found):
                at = 0
                for begin, end in self._bounds(bucket, rank):
                    whole[begin:end] = values[at : at + end - begin]
                    at += end - begin

    def scatter(self, world: World, whole: np.ndarray | None, mine: np.ndarray) -> None:
        """Copies an arena of rank 0, `whole` (None on other ranks), into every rank's array of shares, `mine`."""
        for bucket, shares in zip(self._buckets, self._of_bucket, strict=True):
            values = (
                np.empty(bucket.end - bucket.begin, np.float32) if whole is None else whole[bucket.begin : bucket.end]
            )
            world.broadcast(values)
            for begin, end, at in shares:
                mine[at : at + end - begin] = values[begin - bucket.begin : end - bucket.begin]


@dataclass
class ShardedWeights:
    """The weights of a net with sharded updates.

    weights: the arena, which the net reads. masters: the float32 weights of this rank's shares, if the arena does not
    hold them: it holds them rounded to bfloat16, or, in mode ASYNC, those of older versions. sums: in mode ASYNC, the
    sums of gradients of this rank's shares; elsewhere the sums are in the gradients' arena."""

    shares: Shares
    weights: np.ndarray
    masters: np.ndarray | None = None
    sums: np.ndarray | None = None

    def of_chunk(self, begin: int) -> np.ndarray | None:
        """Returns the masters of this rank's share of the chunk that begins at a float of the arena; None if there are
        no masters."""
        share = self.shares.of_chunk(begin)
        return None if self.masters is None else self.masters[share.at : share.at + share.end - share.begin]
