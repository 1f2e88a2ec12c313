"""Connects a net to its data: opens the sources of its data layers and feeds it batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from engine import proto
from engine.data import batch_size_of, open_data, source_of
from engine.data.hdf5_writer import HDF5Outputs
from engine.data.host_lock import beating
from engine.data.prefetch import Batch, Prefetcher
from engine.data.readers.memory import MemoryReader
from engine.data.side_by_side import Opened, reads_of, refuse_skipping
from engine.data.staging import CopyShare
from engine.errors import ConfigError, DataError
from engine.watchdog.board import DATA

if TYPE_CHECKING:
    from engine.comm.world import World
    from engine.config import NetConfig
    from engine.data.data_source import DataSource
    from engine.data.reader import Reader
    from engine.layers.base import Shape
    from engine.net import Net


# An item among those of all ranks: (path of its source, the ranks that own the source or None for all, index there).
Item: TypeAlias = tuple[str, "tuple[int, ...] | None", int]


class Feeder:
    """Feeds one net on one rank.

        feeder = Feeder(config, TRAIN, seed, world())
        net = Net(config, TRAIN, NetOptions(shapes_of=feeder.shapes_of))
        feeder.start(iteration * samples_per_iteration)
        for ...:
            first_sample = feeder.next(net)
            net.forward(Counters(step, first_sample))

    A net without data layers (DummyData, Input) is fed nothing; its samples are counted all the same.
    """

    def __init__(self, config: NetConfig, phase: int, seed: int, world: World, *, skip_bad_images: bool = False):
        self._config, self._phase, self._seed = config, phase, seed
        self._world = world
        self._rank, self._ranks, self._board = world.rank, world.size, world.board
        self._skip_bad_images = skip_bad_images
        world.hear_faults()  # files that sources map may be cut short while they are read
        self.opened: dict[str, Opened] = {}  # by layer
        self._batches: dict[str, Prefetcher] = {}
        # For nets without data layers: the first sample and this rank's turn, by start(), and the batches since.
        self._begin, self._turn, self._taken = 0, 0, 0
        self._keys: list[str] = []  # of the batch in use
        self._outputs = HDF5Outputs()
        self.decoded: tuple[int, int] | None = None  # when the batch in use was decoded: see Batch

    def shapes_of(self, message: proto.LayerParameter, where: str) -> list[Shape]:
        """Opens the source of a data layer, once, and returns the shapes of its tops, batch axis included. Raises
        ConfigError, DataError."""
        if message.name not in self.opened:
            size = batch_size_of(message, where)
            share = self._share(message)
            with beating(self._board.beat):
                source = open_data(
                    message,
                    self._phase,
                    self._seed,
                    where,
                    self._skip_bad_images,
                    rank=self._rank,
                    ranks=self._ranks,
                    share=share,
                )
            self.opened[message.name] = Opened(source, size, source_of(message), reads_of(message))
            if self._skip_bad_images:
                refuse_skipping(self.opened, message.name, where)
        opened = self.opened[message.name]
        return opened.source.top_shapes(opened.batch_size)

    def regroup(self) -> None:
        """Takes over this rank's number and the number of ranks after World.shrink(), for the next start()."""
        self._rank, self._ranks = self._world.rank, self._world.size

    def _share(self, message: proto.LayerParameter) -> CopyShare | None:
        """Returns the ranks that share a copy of the layer's source on this host; None if it is not to be copied."""
        if not message.data_param.stage:
            return None
        hosts = self._world.hosts()  # not collective: a script may make a net on one rank alone
        mine, names = hosts[self._rank], list(dict.fromkeys(hosts))
        sharing = tuple(rank for rank, host in enumerate(hosts) if host == mine)
        place = sharing.index(self._rank), sharing, names.index(mine), len(names)
        return CopyShare(*place, self._world.leaves, self._world.keeps)

    def shapes_for(self, size: int) -> Callable[[proto.LayerParameter, str], list[Shape]]:
        """Returns a shapes_of() for another net with the same data layers, with batches of `size`."""

        def shapes_of(message: proto.LayerParameter, where: str) -> list[Shape]:
            self.shapes_of(message, where)
            return self.opened[message.name].source.top_shapes(size)

        return shapes_of

    def set_arrays(self, layer: str, data: np.ndarray, labels: np.ndarray, start: int = 0) -> None:
        """Sets the arrays that a MemoryData layer reads from the next start() on: data (n, c, h, w), labels (n,).

        start: the sample, counted as in start(), that is item 0 of the arrays. Raises DataError."""
        reader = self.opened[layer].source.reader if layer in self.opened else None
        if not isinstance(reader, MemoryReader):
            raise DataError(f"the net has no MemoryData layer '{layer}'", self._config.path)
        reader.set(data, labels, start * self.opened[layer].batch_size // self.batch_size)

    def connect(self, net: Net) -> None:
        """Makes the net's HDF5Output layers write their bottoms after every forward. Raises ConfigError, DataError."""
        self._outputs.connect(net, self._rank, self._ranks)

    @property
    def batch_size(self) -> int:
        """The number of samples in one batch of one rank, of the first data layer; 0 if there is none."""
        return next((opened.batch_size for opened in self.opened.values()), 0)

    @property
    def size(self) -> int:
        """The number of items in the source of the first data layer, or, if own_items, of this rank's items there; 0 if
        there is no data layer."""
        return next((opened.source.own_size for opened in self.opened.values()), 0)

    @property
    def own_items(self) -> bool:
        """Whether ranks have sources of their own for the first data layer, so that `size` counts this rank's items
        only."""
        return next((opened.source.reader.owners is not None for opened in self.opened.values()), False)

    def size_of_all(self) -> int:
        """Returns the number of items of all ranks together. Collective."""
        size = np.array([self.size])
        if self.own_items:
            self._world.allreduce(size)
        return int(size[0])

    def epoch_batches(self) -> int:
        """Returns the number of batches in `size` items, of which the last may be smaller. Raises ConfigError if no
        data layer has a source that ends."""
        if not self.size:
            raise ConfigError(
                "the net has no data source whose end could be reached; give a number of batches (--iterations, or "
                "test_iter in a solver)",
                self._config.path,
            )
        return -(-self.size // self.batch_size)

    @property
    def sources(self) -> list[str]:
        """The data layers and their sources, for messages: "layer 'data' (train_lmdb)"."""
        return [f"layer '{name}'" + (f" ({each.path})" if each.path else "") for name, each in self.opened.items()]

    @property
    def readers(self) -> dict[str, Reader]:
        """The readers of the sources that are open, by layer."""
        return {name: opened.source.reader for name, opened in self.opened.items()}

    @property
    def data_sources(self) -> dict[str, DataSource]:
        """The sources that are open, by layer."""
        return {name: opened.source for name, opened in self.opened.items()}

    @property
    def batch_sizes(self) -> dict[str, int]:
        """The batch sizes of the layers whose sources are open, by layer."""
        return {name: opened.batch_size for name, opened in self.opened.items()}

    def ring_bytes(self) -> dict[str, int]:
        """Returns the bytes of the batches in use and ahead, by layer, for those whose sources are open."""
        return {name: opened.source.ring_bytes(opened.batch_size) for name, opened in self.opened.items()}

    def identities(self) -> dict[str, str]:
        """Returns DataSource.identity() of each source, which must be the same on all ranks, by the words that messages
        use for the source. Raises DataError."""
        phase = "train" if self._phase == proto.TRAIN else "test"
        return {
            f"the {phase} data of {name}": opened.source.identity()
            for name, opened in zip(self.sources, self.opened.values(), strict=True)
        }

    @property
    def skipped(self) -> dict[Item, tuple[str, str]]:
        """Item -> (key, reason) of the undecodable images that were skipped on this rank."""
        return {
            (opened.path, opened.source.reader.owners, index): found
            for opened in self.opened.values()
            for index, found in opened.source.skipped.items()
        }

    @property
    def recoloured(self) -> int:
        """The number of this rank's images that were converted to the colours of the first one: see DataSource."""
        return sum(opened.source.recoloured for opened in self.opened.values())

    @property
    def wait_seconds(self) -> float:
        """The seconds that this rank has waited for data since start()."""
        return sum(batches.wait_seconds for batches in self._batches.values())

    def start(self, start: int = 0, first_rank: int = 0) -> None:
        """Starts endless batches from sample `start` on, counted over all ranks in samples of the first data layer. The
        first batch from there on is that of first_rank."""
        self.stop()
        with self._all_or_none():
            for name, opened in self.opened.items():
                # Layers with other batch sizes are as many batches ahead as the first.
                begin = start * opened.batch_size // self.batch_size
                self._batches[name] = opened.source.batches(
                    opened.batch_size, self._rank, self._ranks, begin, first_rank=first_rank
                )
        self._begin, self._turn, self._taken = start, (self._rank - first_rank) % self._ranks, 0

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Returns a context in which an interrupt stops all layers, so that none is ahead of the others; the next
        start() begins with all of them."""
        try:
            yield
        except KeyboardInterrupt:
            self.stop()
            raise

    def start_epoch(self) -> None:
        """Starts an epoch: every item exactly once over all ranks, then take() returns None. Raises as
        require_epoch()."""
        self.stop()
        self.require_epoch()
        for name, opened in self.opened.items():
            self._batches[name] = opened.source.epoch(opened.batch_size, self._rank, self._ranks)

    def require_epoch(self) -> None:
        """Raises ConfigError for a net whose data layers do not end together."""
        extents = {(opened.source.size, opened.batch_size) for opened in self.opened.values()}
        if len(extents) > 1:
            raise ConfigError(
                f"the net's data layers differ in size or batch size, so that it has no epoch: {sorted(extents)}",
                self._config.path,
            )

    @property
    def running(self) -> bool:
        """Whether this is between start() and stop(); False for a net without data layers."""
        return bool(self._batches)

    def take(self) -> Batch | None:
        """Returns the next batch of every data layer as one; None at the end of an epoch. Raises DataError for an item
        that cannot be read."""
        self._board.enter(DATA)
        with self._all_or_none():
            taken = [batch for batches in self._batches.values() if (batch := next(batches, None)) is not None]
        self._taken += 1
        if len(taken) < len(self._batches):
            return None
        if not taken:
            return Batch(self._begin + (self._taken - 1) * self._ranks + self._turn, 0)
        return replace(taken[0], arrays={name: tops for each in taken for name, tops in each.arrays.items()})

    def feed(self, net: Net, batch: Batch) -> int:
        """Points the net's inputs at a batch, which the executor reads in place. Returns its first sample's number.

        A net without data layers counts the rows of its batches here, while a batch counts as one sample in start()."""
        for layer in net.graph.layers:
            for top, values in zip(layer.tops, batch.arrays.get(layer.name, ()), strict=False):
                net.feed(top, values)
        self._keys, self.decoded = batch.keys, batch.decoded
        return batch.first_sample if self.opened else batch.first_sample * max(1, net.graph.batch_size)

    def next(self, net: Net) -> int:
        """Feeds the next of the endless batches and returns the number of its first sample."""
        return self.feed(net, cast(Batch, self.take()))  # endless: never None

    @property
    def keys(self) -> list[str]:
        """The keys of the samples in use, of the first data layer."""
        return list(self._keys)

    def describe_batch(self, item: tuple[str, int] | None = None) -> str:
        """Returns which samples are in use, for messages: "The batch holds keys 'a.jpg', ... and 29 more. ", or "".

        item: (data layer, place in its batch) of a sample to name alone: "Its key is 'a.jpg' in a_lmdb. "."""
        if not self._keys:
            return ""
        if item and item[0] == next(iter(self.opened)) and item[1] < len(self._keys):
            source = self.opened[item[0]].path
            return f"Its key is {self._keys[item[1]]!r}{f' in {source}' if source else ''}. "
        more = f" and {len(self._keys) - 3} more" if len(self._keys) > 3 else ""
        return f"The batch holds keys {', '.join(repr(key) for key in self._keys[:3])}{more}. "

    @contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Returns a context for a forward of the batch in use. If a layer cannot take its data, the DataError says
        which batch that was, by the words `what`, and names the samples."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{what}: {error}. {self.describe_batch(error.item)}".strip()) from None

    def stop(self) -> None:
        """Ends the decoding threads. start() may be called again."""
        for batches in self._batches.values():
            batches.close()
        self._batches = {}

    def close(self) -> None:
        self.stop()
        self._outputs.close()
