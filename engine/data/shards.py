"""Reads a source that is one file or many, whose names may have {000..146}, {a,b}, * and ?."""

from __future__ import annotations

import glob
import os
import re
from functools import lru_cache
from typing import BinaryIO

from engine.data.limits import MAX_BYTES
from engine.errors import DamagedItem, DataError
from engine.files import is_regular, reason

MAX_SHARDS = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_OPEN_FILES = 64  # of one source in one process: the system's limit may be 1024


def is_pattern(path: str) -> bool:
    """Returns whether a path stands for several files, and is not itself the name of something."""
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


def expand(path: str, where: str | None = None) -> list[str]:
    """Returns the files that a path names: the path itself, or those that {first..last}, {this,that}, * and ? stand
    for. The files of a * or ? are sorted. Raises DataError if there are none or too many."""
    if not is_pattern(path):
        return [path]
    found = []
    for name in _braces(path, where):
        if not glob.has_magic(name):
            found.append(name)
        elif below := sorted(glob.glob(name)):
            found += below
        else:
            raise DataError(f"no file is named {name}", where)
    return found


def _braces(path: str, where: str | None) -> list[str]:
    match = _BRACES.search(path)
    if match is None:
        return [path]
    if span := _RANGE.fullmatch(match[1]):
        first, last = int(span[1]), int(span[2])
        if not first <= last < first + MAX_SHARDS:
            raise DataError(f"{path}: expected {{first..last}} of 1 to {MAX_SHARDS} files, got {match[0]}", where)
        width = len(span[1]) if span[1].startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    else:
        choices = match[1].split(",")
    names = []
    for choice in choices:
        names += _braces(path[: match.start()] + choice + path[match.end() :], where)
        if len(names) > MAX_SHARDS:
            raise DataError(f"{path}: it stands for more than {MAX_SHARDS} files", where)
    return names


class Shards:
    """The files of a source, which are opened when they are needed. read() may be called by many threads."""

    def __init__(self, paths: list[str], where: str | None):
        self.paths, self._where = paths, where
        for path in paths:
            if not is_regular(path):
                raise DataError(f"{path}: no such file", where)
        self._file = lru_cache(maxsize=_OPEN_FILES)(self._open)  # one that is dropped is closed by its last reader

    def _open(self, shard: int) -> BinaryIO:
        try:
            return open(self.paths[shard], "rb", buffering=0)
        except OSError as error:
            raise self.error(shard, f"cannot be read: {reason(error)}") from None

    def size(self, shard: int) -> int:
        file = self._file(shard)
        return os.fstat(file.fileno()).st_size

    def read(self, shard: int, offset: int, size: int, most: int = MAX_BYTES) -> bytes:
        """Returns `size` bytes of a file from offset on. Raises DataError if the file ends before, or if they are more
        than `most`."""
        if not 0 <= size <= most:
            raise self.error(shard, f"an item of {size} bytes at byte {offset}, more than {most}")
        file = self._file(shard)  # this reference keeps it open: the cache may drop it meanwhile
        try:
            content = os.pread(file.fileno(), size, offset)
            while len(content) < size and (more := os.pread(file.fileno(), size - len(content), offset + len(content))):
                content += more  # a large read may return less
        except OSError as error:
            raise self.error(shard, f"cannot be read at byte {offset}: {reason(error)}") from None
        if len(content) < size:
            raise self.error(
                shard,
                f"it ends at byte {self.size(shard)}, an item of it at {offset + size}: it is "
                "truncated, or has changed since it was opened",
            )
        return content

    def error(self, shard: int, what: str) -> DataError:
        return DataError(f"{self.paths[shard]}: {what}", self._where)

    def damaged(self, shard: int, key: str, what: str) -> DamagedItem:
        return DamagedItem(f"{self.paths[shard]}: {what}", key, self._where)
