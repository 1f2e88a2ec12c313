"""What a Data layer reads: a source, an order, a transform, and the batches that come of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.data.decode import ImageError, UndecodableImage, parse_datum
from engine.data.keyed_random import KeyedRandom
from engine.data.prefetch import Prefetcher
from engine.data.registry import Source
from engine.data.sampler import Sampler, Share
from engine.data.transform import Transformer
from engine.errors import DataError

if TYPE_CHECKING:
    from engine.proto import DataParameter, Datum


class DataSource:
    """Made by open_data().

    size: the items of the source. shapes: ((c, h, w), ()) of data and label, without the batch.
    skipped: key -> reason of the undecodable images met so far, with skip_bad_images.
    """

    def __init__(
        self,
        source: Source,
        transformer: Transformer,
        param: DataParameter,
        phase: int,
        seed: int,
        where: str | None,
        skip_bad_images: bool,
    ):
        self.size = len(source)
        self.skipped: dict[str, str] = {}
        self._source = source
        self._transformer = transformer
        self._name = param.source
        self._depth = param.prefetch
        self._own_part = "%#" in param.source
        self._seed = seed
        self._where = where
        self._skip_bad_images = skip_bad_images
        self._skipping = threading.Lock()
        self._sampler = Sampler(self.size, seed, param.shuffle)
        rand_skip = param.rand_skip if phase == proto.TRAIN else 0
        self._begin = KeyedRandom(seed, 0, 0).integer(0, rand_skip - 1) if rand_skip else 0
        self.shapes = (self._first_shape(), ())

    def batches(
        self, batch_size: int, rank: int = 0, ranks: int = 1, start: int = 0, threads: int | None = None
    ) -> Prefetcher:
        """Endless batches of this rank, beginning at sample `start` (counted over all ranks)."""
        shares = self._sampler.shares(batch_size, rank, ranks, self._begin + start, own_part=self._own_part)
        return self._prefetch(shares, batch_size, threads)

    def epoch(self, batch_size: int, rank: int = 0, ranks: int = 1, threads: int | None = None) -> Prefetcher:
        """Every item exactly once over all ranks, then StopIteration: full batches, and at most one smaller one at the
        end of each rank. The ranks' numbers of batches can differ by one."""
        shares = self._sampler.shares(batch_size, rank, ranks, stop=self.size, own_part=self._own_part)
        return self._prefetch(shares, batch_size, threads)

    def _prefetch(self, shares: Iterator[Share], batch_size: int, threads: int | None) -> Prefetcher:
        return Prefetcher(self._load, shares, self.shapes[0], batch_size, self._depth, threads)

    def _first_shape(self) -> tuple[int, int, int]:
        """Of the first item that can be decoded, as Caffe takes the first."""
        shapes = []
        self._read(0, 0, lambda datum, random: shapes.append(self._transformer.shape(datum)))
        return shapes[0]

    def _load(self, epoch: int, index: int, out: np.ndarray) -> tuple[int, str]:
        """Fills out (c, h, w) with the item; returns its label and key. Raises DataError."""
        return self._read(epoch, index, lambda datum, random: self._transformer.apply(datum, random, out))

    def _read(self, epoch: int, index: int, use: Callable[[Datum, KeyedRandom], None]) -> tuple[int, str]:
        """Calls use(datum, random) with an item, or with the next one that can be decoded if bad ones are skipped;
        returns the label and key of the item used. Raises DataError."""
        for _ in range(self.size):
            key, value = self._source.item(index)
            try:
                datum = parse_datum(value)
                use(datum, KeyedRandom(self._seed, epoch, index))
                return datum.label, key
            except ImageError as error:
                if not (self._skip_bad_images and isinstance(error, UndecodableImage)):
                    raise DataError(f"{self._name}: key '{key}': {error}", self._where) from None
                with self._skipping:
                    self.skipped[key] = str(error)
            index = (index + 1) % self.size
        raise DataError(f"{self._name}: none of its {self.size} images can be decoded", self._where)
