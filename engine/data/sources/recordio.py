"""RecordIO: the .rec files that MXNet's im2rec writes, one or many, with their .idx files or without.

A record is one piece or several. A piece is the magic number, a word with its kind (upper 3 bits) and its length (lower
29 bits), its bytes, and padding to a multiple of 4 bytes. A record's bytes are cut where they hold the magic number at
a multiple of 4, which is then left out: the pieces are a first one, some in the middle and a last one. The record of an
image begins with flag, label, id and id2; a flag above 0 is the number of labels that follow and replace the one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from engine import proto
from engine.config.numbers import whole
from engine.data.host_lock import watched
from engine.data.index import Index, open_index
from engine.data.limits import MAX_BYTES
from engine.data.members import set_labels
from engine.data.registry import source
from engine.data.shards import Shards, expand, is_pattern
from engine.errors import ConfigError
from engine.files import is_regular, read_text

_MAGIC = 0xCED7230A
_WORD = struct.pack("<I", _MAGIC)
_HEAD = struct.Struct("<II")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_IMAGE = struct.Struct("<IfQQ")
MAX_LABELS = 1 << 16


@source("RECORDIO")
class RecordIoSource:
    """Samples in the order of the .idx file or, if there is none, of the records."""

    classes: list[str] = []

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        if fields:
            raise ConfigError("RecordIO has no fields: take out data_param.field", where)
        self._shards = Shards(expand(path, where), where)
        index = open_index(path, "RECORDIO", self.files_of(path, where), self._build, where)
        self._shard, self._offset = index.columns["shard"], index.columns["offset"]

    @staticmethod
    def recognises(path: str) -> bool:
        if is_pattern(path):
            return path.endswith(".rec")
        if not is_regular(path):
            return False
        with open(path, "rb") as file:
            return file.read(4) == _WORD

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        shards = expand(path, where)
        return [*shards, *filter(is_regular, map(_index_of, shards))]

    def _build(self) -> Index:
        places = []
        for shard, path in enumerate(self._shards.paths):
            listed = _index_of(path)
            offsets = self._listed(shard, listed) if is_regular(listed) else self._walk(shard)
            places += [(shard, offset) for offset in watched(offsets)]
        found = np.array(places, np.int64).reshape(-1, 2)
        if not len(found):
            raise self._shards.error(0, "it has no records in it")
        return Index({"shard": found[:, 0].astype(np.int32), "offset": np.ascontiguousarray(found[:, 1])})

    def _walk(self, shard: int) -> Iterator[int]:
        """Yields the offsets of all records. Raises DataError."""
        at, end = 0, self._shards.size(shard)
        while at < end:
            yield at
            at = self._next(shard, at)

    def _next(self, shard: int, at: int) -> int:
        """Returns the offset of the record after the one at `at`. Raises DataError."""
        for begin, length in self._pieces(shard, at):
            at = begin + -(-length // 4) * 4
        return at

    def _pieces(self, shard: int, at: int) -> Iterator[tuple[int, int]]:
        """Yields (offset, length) of the bytes of each piece of the record at `at`. Raises DataError."""
        number, total = 0, 0
        while True:
            magic, word = _HEAD.unpack(self._shards.read(shard, at, _HEAD.size))
            kind, length = word >> 29, word & (1 << 29) - 1
            fits = kind in (_MIDDLE, _LAST) if number else kind in (_WHOLE, _FIRST)
            total += length
            if magic != _MAGIC or not fits or total > MAX_BYTES:
                raise self._shards.error(
                    shard, f"no record begins at byte {at}: the file is damaged, or older than its .idx"
                )
            if at + _HEAD.size + length > self._shards.size(shard):
                raise self._shards.error(
                    shard, f"it ends within the record at byte {at}: it is truncated; copy it again"
                )
            yield at + _HEAD.size, length
            if kind in (_WHOLE, _LAST):
                return
            number, at = number + 1, at + _HEAD.size + -(-length // 4) * 4

    def _listed(self, shard: int, path: str) -> list[int]:
        """Returns the offsets of records in the order of an .idx file, whose lines have a key and an offset. Raises
        DataError if the .idx is not of this file."""
        size, offsets = self._shards.size(shard), []
        for number, line in enumerate(read_text(path).splitlines(), 1):
            words = line.split("\t")
            offset = whole(words[-1].strip(), 0, size - _HEAD.size)
            if len(words) != 2 or offset is None or offset % 4:
                raise self._shards.error(
                    shard,
                    f"{path}:{number} leads to no record of it, got {line[:40]!r}; remove the .idx, or make it anew",
                )
            offsets.append(offset)
        if not offsets or min(offsets) != 0 or self._next(shard, max(offsets)) != size:
            raise self._shards.error(
                shard,
                f"{path} is not of this file: its last record does not end where the file "
                "does; remove the .idx, or make it anew",
            )
        return offsets

    def __len__(self) -> int:
        return len(self._offset)

    def item(self, index: int) -> tuple[str, proto.Datum]:
        """Returns (key, Datum of an image file). Raises DataError."""
        shard, offset = int(self._shard[index]), int(self._offset[index])
        pieces = [self._shards.read(shard, begin, length) for begin, length in self._pieces(shard, offset)]
        content = _WORD.join(pieces)
        key = f"{os.path.basename(self._shards.paths[shard])}[{index}]"
        if len(content) < _IMAGE.size:
            raise self._shards.error(
                shard, f"the record at byte {offset} has {len(content)} bytes, fewer than the header of an image"
            )
        flag, label, _, _ = _IMAGE.unpack_from(content)
        begin = _IMAGE.size + 4 * flag
        if flag > MAX_LABELS or begin > len(content):
            raise self._shards.error(shard, f"the record at byte {offset} says {flag} labels, in {len(content)} bytes")
        datum = proto.Datum(encoded=True, data=content[begin:])
        labels = np.frombuffer(content, "<f4", flag, _IMAGE.size).tolist() if flag else [label]
        set_labels(datum, labels)
        return key, datum


def _index_of(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"
