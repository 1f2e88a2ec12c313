"""TFRecord: files of tf.train.Examples, one or many. data_param.field names the features that the tops are made of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from engine import proto
from engine.data.example import CHECKSUM, HEAD, checksum, parse
from engine.data.host_lock import watched
from engine.data.index import Index, open_index
from engine.data.limits import MAX_BYTES
from engine.data.members import set_labels
from engine.data.registry import source
from engine.data.shards import Shards, expand, is_pattern
from engine.errors import DataError
from engine.files import is_regular

# The usual names of features: those of TensorFlow's own tools first, then those of TensorFlow Datasets and others.
PICTURE, LABEL, MASK = (
    ("image/encoded", "image", "image_raw", "jpg"),
    ("image/class/label", "label", "cls"),
    ("image/segmentation/class/encoded", "segmentation_mask", "mask"),
)


@source("TFRECORD")
class TfRecordSource:
    """Samples in the order of the files and of the records in them. The checksums of lengths are checked when the index
    is built, those of records when they are read."""

    classes: list[str] = []

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        self._path, self._where, self._fields = path, where, tuple(fields)
        self._shards = Shards(expand(path, where), where)
        index = open_index(path, "TFRECORD", self._shards.paths, self._build, where)
        self._shard, self._offset, self._length = (index.columns[name] for name in ("shard", "offset", "length"))
        self._first = np.searchsorted(self._shard, np.arange(len(self._shards.paths)))  # the first sample of each shard

    @staticmethod
    def recognises(path: str) -> bool:
        """Returns whether a file begins with a length and its checksum, whatever its name is; or, as a pattern is no
        file, whether it looks like a usual name."""
        if is_pattern(path):
            return ".tfrecord" in path or "-of-" in path
        if not is_regular(path):
            return False
        with open(path, "rb") as file:
            head = file.read(HEAD.size)
        return len(head) == HEAD.size and checksum(head[:8]) == HEAD.unpack(head)[1]

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        return expand(path, where)

    def _build(self) -> Index:
        places = [place for shard in range(len(self._shards.paths)) for place in watched(self._walk(shard))]
        if not places:
            raise self._shards.error(0, "it has no records in it")
        found = np.array(places, np.int64)
        return Index(
            {
                "shard": found[:, 0].astype(np.int32),
                "offset": np.ascontiguousarray(found[:, 1]),
                "length": np.ascontiguousarray(found[:, 2]),
            }
        )

    def _walk(self, shard: int) -> Iterator[tuple[int, int, int]]:
        """Yields (shard, offset, length) of the bytes of each record. Raises DataError."""
        at, end = 0, self._shards.size(shard)
        while at < end:
            if at + HEAD.size > end:
                raise self._truncated(shard, at)
            head = self._shards.read(shard, at, HEAD.size)
            length, expected = HEAD.unpack(head)
            if checksum(head[:8]) != expected:
                packed = "; it is packed by gzip: unpack it first" if head[:2] == b"\x1f\x8b" else ""
                raise self._shards.error(shard, f"the length of the record at byte {at} has a wrong checksum{packed}")
            begin, at = at + HEAD.size, at + HEAD.size + length + CHECKSUM.size
            if at > end:
                raise self._truncated(shard, begin - HEAD.size)
            yield shard, begin, length

    def _truncated(self, shard: int, at: int) -> DataError:
        return self._shards.error(shard, f"it ends within the record at byte {at}: it is truncated; copy it again")

    def __len__(self) -> int:
        return len(self._offset)

    def item(self, index: int) -> tuple[str, proto.Datum]:
        """Returns (key, Datum of an image file). Raises DataError."""
        shard, begin, length = int(self._shard[index]), int(self._offset[index]), int(self._length[index])
        content = self._shards.read(shard, begin, length + CHECKSUM.size, MAX_BYTES)
        content, (expected,) = content[:length], CHECKSUM.unpack(content[length:])
        key = f"{os.path.basename(self._shards.paths[shard])}[{index - int(self._first[shard])}]"
        if checksum(content) != expected:
            raise self._shards.damaged(
                shard, key, f"the record at byte {begin - HEAD.size} ({key}) has a wrong checksum"
            )
        try:
            features = parse(content)
        except DecodeError:
            what = f"the record at byte {begin - HEAD.size} ({key}) is no Example"
            raise self._shards.damaged(shard, key, what) from None
        return key, self._datum(shard, key, features)

    def _datum(self, shard: int, key: str, features: dict[str, Sequence[Any]]) -> proto.Datum:
        """Returns a Datum of an Example's picture, labels and mask. Raises DataError if one that is wanted is
        missing."""
        picture = self._feature(shard, key, features, self._fields[:1] or PICTURE)
        if len(picture) != 1 or not isinstance(picture[0], bytes):
            raise self._shards.error(shard, f"{key}: expected the bytes of one image file, got a feature of numbers")
        datum = proto.Datum(encoded=True, data=picture[0])
        partners = self._fields[1:]
        if not self._fields:  # by their usual names
            found = (next((name for name in names if features.get(name)), None) for names in (LABEL, MASK))
            partners = tuple(name for name in found if name is not None)
        if not (partners or self._fields):
            raise self._shards.error(
                shard,
                f"{key} has neither a label ('{LABEL[0]}') nor a mask; it has {_known(features)}; say with "
                "data_param.field what the tops are made of: the picture first, alone if no label is wanted",
            )
        labels: list[float] = []
        for name in partners:
            values = self._feature(shard, key, features, [name])
            if isinstance(values[0], bytes):
                datum.mask = values[0]
            else:
                labels += values
        if labels:
            set_labels(datum, labels)
        return datum

    def _feature(self, shard: int, key: str, features: dict[str, Sequence[Any]], names: Sequence[str]) -> Sequence[Any]:
        """Returns the values of the first of these features that an Example has. Raises DataError if it has none."""
        found = next((features[name] for name in names if features.get(name)), None)
        if found is None:
            raise self._shards.error(
                shard, f"{key} has no feature '{names[0]}'; it has {_known(features)}; name one with data_param.field"
            )
        return found


def _known(features: dict[str, Sequence[Any]]) -> str:
    return ", ".join(sorted(features)[:20]) or "no features"
