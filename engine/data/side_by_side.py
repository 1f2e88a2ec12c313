"""Compares the data layers of a net: do two read the same samples, and do their items of one number come together?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from engine import proto
from engine.data import set_batch_size
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.data.data_source import DataSource


@dataclass
class Opened:
    """A data layer whose source is open. path: of the source, "" if it has none. reads: what reads_of() returns."""

    source: DataSource
    batch_size: int
    path: str
    reads: proto.LayerParameter


def reads_of(message: proto.LayerParameter) -> proto.LayerParameter:
    """Returns the part of a data layer that tells what is read, and how it is transformed. Two layers with the same
    part read the same."""
    reads = proto.LayerParameter()
    reads.CopyFrom(message)
    for name in ("name", "top", "include", "exclude", "phase"):
        reads.ClearField(name)
    set_batch_size(reads, 1)  # the batch size makes no difference
    return reads


def refuse_skipping(opened: Mapping[str, Opened], layer: str, where: str) -> None:
    """Raises ConfigError if another source has as many items as the layer's. They may be pairs, and skip_bad_images
    would replace a bad item in one of them alone."""
    path, size = opened[layer].path, opened[layer].source.size
    for name, other in opened.items():
        if other.source.size == size and other.path != path:
            raise ConfigError(
                f"layers '{name}' and '{layer}' have {size} items each, which --skip_bad_images would replace in "
                "one of them alone: put both into one source, or leave --skip_bad_images out",
                where,
            )


def same_samples(opened: Mapping[str, Opened]) -> Iterator[tuple[str, str, str]]:
    """Yields (layer, layer, source) for two layers that read the same samples and transform them alike: what is random
    depends on the seed, the epoch and the sample only."""
    for (one, a), (other, b) in combinations(opened.items(), 2):
        if a.path and a.reads == b.reads:
            yield one, other, a.path


def torn_pairs(opened: Mapping[str, Opened]) -> Iterator[tuple[str, str, str]]:
    """Yields (layer, layer, what differs) if items of one number in two sources do not come in one sample of the batch.
    Layers of one source, and layers with different batch sizes, are not taken for pairs."""
    for (one, a), (other, b) in combinations(opened.items(), 2):
        if a.path == b.path or a.batch_size != b.batch_size:
            continue
        if 0 not in (a.source.size, b.source.size) and a.source.size != b.source.size:
            yield one, other, f"they have {a.source.size} and {b.source.size} items"
        elif a.source.reader.shuffle != b.source.reader.shuffle:
            yield one, other, f"only '{one if a.source.reader.shuffle else other}' has shuffle: true"
        elif a.source.reader.first != b.source.reader.first:
            yield one, other, "they differ in rand_skip"
