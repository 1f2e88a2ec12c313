"""The source of a data layer, with the order of its samples, each rank's share of them, and prefetching."""

from __future__ import annotations

from engine.data.prefetch import Prefetcher
from engine.data.reader import Reader, Request, Shape
from engine.data.sampler import Sampler
from engine.errors import DataError


class DataSource:
    """Gives the batches of a data layer's source; open_data() makes it.

    `shapes`: of one item's arrays, one for each top, without the batch axis."""

    def __init__(self, reader: Reader, name: str, request: Request):
        self.reader = reader
        self._name = name
        self._request = request

    @property
    def name(self) -> str:
        """The source, as the layer names it."""
        return self.reader.name

    @property
    def size(self) -> int:
        """The number of items of the source."""
        return self.reader.size

    @property
    def own_size(self) -> int:
        """The number of this rank's items: all, or if the source belongs to some ranks only, its share of theirs."""
        if self.reader.owners is None:
            return self.size
        rank, ranks = self.reader.owners.index(self._request.rank), len(self.reader.owners)
        return self.size * (rank + 1) // ranks - self.size * rank // ranks

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.reader.shapes

    @property
    def skipped(self) -> dict[int, tuple[str, str]]:
        """Item -> (key, reason) of the undecodable images met so far, with skip_bad_images. It is a copy, in the order
        of the items, whichever thread met them first."""
        with self.reader.skipping:
            return dict(sorted(self.reader.skipped.items()))

    @property
    def recoloured(self) -> int:
        """The number of images met so far that were grey among coloured ones, or the other way around."""
        return len(self.reader.recoloured)

    def identity(self) -> str:
        """Returns a few words that differ between ranks if they do not read the same items; "" if each has its own.
        Raises DataError."""
        return "" if self.reader.owners else self.reader.identity()

    def top_shapes(self, batch_size: int) -> list[Shape]:
        """Of the layer's tops, batch included."""
        return self.reader.top_shapes(self.shapes, batch_size)

    def ring_bytes(self, batch_size: int) -> int:
        """What the buffers of batches() or epoch() take."""
        return self.reader.ring_bytes(batch_size)

    def batches(
        self,
        batch_size: int,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
        threads: int | None = None,
        first_rank: int = 0,
    ) -> Prefetcher:
        """Returns endless batches of this rank, beginning at sample `start`, counted over all ranks. The first batch
        from there on is that of first_rank."""
        begin = self.reader.first + start
        shares = self._sampler().shares(
            batch_size, rank, ranks, begin, owners=self.reader.owners, first_rank=first_rank
        )
        return Prefetcher(self.reader, self._name, shares, batch_size, threads)

    def epoch(self, batch_size: int, rank: int = 0, ranks: int = 1, threads: int | None = None) -> Prefetcher:
        """Returns batches of this rank that have, over all ranks, every item exactly once. All are full, but for at
        most one smaller batch at the end of each rank. The ranks' numbers of batches can differ by one."""
        shares = self._sampler().shares(batch_size, rank, ranks, stop=self.size, owners=self.reader.owners)
        return Prefetcher(self.reader, self._name, shares, batch_size, threads)

    def order(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns (epoch, item) of the samples begin <= p < end of a training."""
        first = self.reader.first
        return self._sampler().samples(first + begin, first + end)

    def _sampler(self) -> Sampler:
        if self.size == 0:
            raise DataError(f"layer '{self._name}' has no data yet: set its arrays first", self._request.where)
        return Sampler(self.size, self._request.seed, self.reader.shuffle)
