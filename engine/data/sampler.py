"""Tells which item is the p-th sample of the training, and which samples belong to which rank.

Sample p, counted over all ranks since the first iteration, is item order(epoch)[p % size] of epoch p // size. A global
batch is the next ranks * batch_size samples, and each rank takes its contiguous share of it: the samples of an
iteration do not depend on how many ranks there are, and a run resumes at any sample on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchShare:
    """One rank's part of a global batch: its first sample's number and (epoch, index of the item) of each sample."""

    first_sample: int
    samples: list[tuple[int, int]]


class Sampler:
    """Gives the samples of a source of `size` items: in its order, or with shuffle in a new permutation of the whole
    source for each epoch, which follows from the seed."""

    def __init__(self, size: int, seed: int, shuffle: bool):
        self.size = size
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, np.ndarray] = {}  # by epoch

    def _order(self, epoch: int) -> np.ndarray:
        """Returns the indices (size,) of an epoch, by RandomState: numpy promises never to change its stream."""
        if epoch not in self._orders:
            while len(self._orders) > 1:  # two, because a batch can lie across the end of an epoch
                del self._orders[min(self._orders)]
            keys = [self._seed & 0xFFFFFFFF, self._seed >> 32 & 0xFFFFFFFF, epoch]
            # The same as permutation(), in half of the memory.
            order = np.arange(self.size, dtype=np.uint32 if self.size < 1 << 32 else np.int64)
            np.random.RandomState(keys).shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]

    def samples(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns (epoch, index) of the samples begin <= p < end."""
        found: list[tuple[int, int]] = []
        position = begin
        while position < end:
            epoch, first = divmod(position, self.size)
            last = min(first + end - position, self.size)
            indices = self._order(epoch)[first:last].tolist() if self._shuffle else range(first, last)
            found.extend((epoch, index) for index in indices)
            position += last - first
        return found

    def shares(
        self,
        batch_size: int,
        rank: int,
        ranks: int,
        start: int = 0,
        stop: int | None = None,
        owners: Sequence[int] | None = None,
        first_rank: int = 0,
    ) -> Iterator[BatchShare]:
        """Yields the rank's share of each global batch from sample `start` on: endlessly, or up to item number `stop`.
        The last global batch may then be short, and the later ranks get less of it, or nothing.

        owners: the ranks whose items the source holds, and who share these; None: all. What was read of the source
            before sample `start` is counted as if each rank in turn, from rank 0 on, had taken a batch.
        first_rank: the rank that has the first share of a global batch; the ranks behind it follow.
        """
        first = start + (rank - first_rank) % ranks * batch_size
        sharing = owners or range(ranks)
        done, rest = divmod(start, batch_size)
        before = sum((done - each + ranks - 1) // ranks for each in sharing)
        place = sum((each - first_rank) % ranks < (rank - first_rank) % ranks for each in sharing)
        begin, stride = (before + place) * batch_size + rest, len(sharing) * batch_size
        while stop is None or begin < stop:
            end = begin + batch_size if stop is None else min(begin + batch_size, stop)
            yield BatchShare(first, self.samples(begin, end))
            first += ranks * batch_size
            begin += stride
