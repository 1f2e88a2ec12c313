"""The source of a data layer: its order, each rank's share, and prefetching."""

from __future__ import annotations

from engine.data.prefetch import Prefetcher
from engine.data.reader import Reader, Request, Shape
from engine.data.sampler import Sampler
from engine.errors import DataError


class DataSource:
    """Made by open_data(). shapes: of one item's arrays, one for each top, without the batch."""

    def __init__(self, reader: Reader, name: str, request: Request):
        self.reader = reader
        self._name = name
        self._request = request

    @property
    def name(self) -> str:
        """What is read, in the layer's words."""
        return self.reader.name

    @property
    def size(self) -> int:
        """The items of the source."""
        return self.reader.size

    @property
    def own_size(self) -> int:
        """The items of the source, divided among the ranks that it belongs to."""
        if self.reader.owners is None:
            return self.size
        rank, ranks = self.reader.owners.index(self._request.rank), len(self.reader.owners)
        return self.size * (rank + 1) // ranks - self.size * rank // ranks

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.reader.shapes

    @property
    def skipped(self) -> dict[int, tuple[str, str]]:
        """Item -> (key, reason) of the undecodable images met so far, with skip_bad_images; a copy, in the order of the
        items, whichever thread met them first."""
        with self.reader.skipping:
            return dict(sorted(self.reader.skipped.items()))

    @property
    def recoloured(self) -> int:
        """Items met so far that were grey among coloured ones, or the other way around."""
        return len(self.reader.recoloured)

    def identity(self) -> str:
        """What shows whether ranks read the same items, in a few words; "" where each has its own. Raises DataError."""
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
        """Endless batches of this rank, beginning at sample `start` (counted over all ranks), of which first_rank has
        the first."""
        begin = self.reader.first + start
        shares = self._sampler().shares(
            batch_size, rank, ranks, begin, owners=self.reader.owners, first_rank=first_rank
        )
        return Prefetcher(self.reader, self._name, shares, batch_size, threads)

    def epoch(self, batch_size: int, rank: int = 0, ranks: int = 1, threads: int | None = None) -> Prefetcher:
        """Every item exactly once over all ranks, then StopIteration: full batches, and at most one smaller one at the
        end of each rank. The ranks' numbers of batches can differ by one."""
        shares = self._sampler().shares(batch_size, rank, ranks, stop=self.size, owners=self.reader.owners)
        return Prefetcher(self.reader, self._name, shares, batch_size, threads)

    def order(self, begin: int, end: int) -> list[tuple[int, int]]:
        """(epoch, item) of the samples begin <= p < end of a training."""
        first = self.reader.first
        return self._sampler().samples(first + begin, first + end)

    def _sampler(self) -> Sampler:
        if self.size == 0:
            raise DataError(f"layer '{self._name}' has no data yet: set its arrays first", self._request.where)
        return Sampler(self.size, self._request.seed, self.reader.shuffle)
