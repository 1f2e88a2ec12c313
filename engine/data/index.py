"""An index tells where the items of a source are. It is built once per host, kept in a file, and mapped by all ranks
that read the source.

The file is in the user's cache folder: ENGINE_CACHE, else engine/ in XDG_CACHE_HOME or ~/.cache. Only if that cannot be
written to, the file is beside the source; otherwise none is read from there, because the owner of the data could have
made it. If that cannot be written to either, each rank holds an index of its own in memory. An index is valid until the
size or the time of one of the source's files changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from engine.data.host_lock import getting_on, host_lock
from engine.errors import DataError, EngineError
from engine.files import atomic_write, cache_folder, reason

SMALLEST = 10_000  # items; fewer are listed in milliseconds, each time anew
_MAGIC = b"engine index 1\n"
_ALIGNED = 64
_AT_ONCE = 4096
_MAX_HEAD = 1 << 26  # bytes; the names of ImageNet's 21,841 classes take 400 KB


@dataclass
class Index:
    """What is known of the items of a source.

    columns: by name, an array with a row for each item, or the arrays of a `Names`. facts: by name, what is known of
    the source as a whole."""

    columns: dict[str, np.ndarray]
    facts: dict[str, list[str]] = field(default_factory=dict)

    def names(self, column: str) -> Names:
        return Names(self.columns[column], self.columns[f"{column}.ends"])

    def add_names(self, column: str, names: Iterable[bytes]) -> None:
        """Adds a column of texts, which names() reads."""
        text, ends, names = bytearray(), array("q", [0]), iter(names)
        while several := list(islice(names, _AT_ONCE)):  # a name at a time takes thrice as long
            getting_on()
            ends.extend(list(accumulate(map(len, several), initial=len(text)))[1:])
            text += b"".join(several)
        self.columns[column] = np.frombuffer(text, np.uint8)
        self.columns[f"{column}.ends"] = np.frombuffer(ends, np.int64)

    def depend_on(self, files: Sequence[str], stamp: str) -> None:
        """Adds files that the index depends on, and that only listing the source has shown. stamp: that of these files,
        by stamp_of(), from before they were read."""
        self.add_names("inner", (os.fsencode(file) for file in files))
        self.facts["inner"] = [stamp]


class Names:
    """A sequence of texts in two arrays: a list of a million texts takes three times the memory, and cannot be
    mapped."""

    def __init__(self, text: np.ndarray, ends: np.ndarray):
        self._text, self._ends = text, ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._text[self._ends[index] : self._ends[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))


def open_index(
    source: str, kind: str, files: Sequence[str | Path], build: Callable[[], Index], where: str | None = None
) -> Index:
    """Returns the index of a source: from its file, if that fits the source as it is, else one process of the host
    builds it.

    Args:
        source: the path as the net names it; the name of the index's file is made from it.
        kind: tells this index from others of the same source: its type, the fields that are read.
        files: the files that the index depends on.
        build: builds the index.
        where: the place of the layer, for messages.

    Raises DataError if one of the files is missing, and what build() raises.
    """
    stamp = stamp_of(kind, files, where)
    place = _place(source, kind, files)
    if (found := _load(place, stamp)) is not None:
        return found
    with host_lock(f"index of {place}", f"listing {source}"):
        if (found := _load(place, stamp)) is not None:
            return found
        index = build()
        # The stamp is from before build(): if a file has changed meanwhile, the index is not valid.
        if _items(index) >= SMALLEST and _save(index, place, stamp):
            return _load(place, stamp) or index
        return index


def stamp_of(kind: str, files: Iterable[str | Path], where: str | None = None) -> str:
    """Returns a text that changes when the size or the time of one of the files does. Raises DataError if one is
    missing."""
    digest = hashlib.sha256(kind.encode(errors="surrogateescape"))
    for file in files:
        try:
            found = os.stat(file)
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read: {reason(error)}", where) from None
        digest.update(os.fsencode(os.path.abspath(file)) + f"\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _place(source: str, kind: str, files: Sequence[str | Path]) -> Path:
    """Returns the path of the index's file."""
    full = os.path.abspath(source)
    key = hashlib.sha256(os.fsencode(full) + b"\0" + kind.encode(errors="surrogateescape")).hexdigest()[:16]
    name = f"{os.path.basename(full)[:100]}.{key}.index"
    folder = cache_folder()
    if folder is not None and _can_be_written(folder):
        return folder / name
    return Path(os.path.abspath(files[0])).parent / f".{name}"


def _can_be_written(folder: Path) -> bool:
    """Returns whether files can be made in a folder, which may have to be made first."""
    there = next((each for each in (folder, *folder.parents) if os.path.exists(each)), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _items(index: Index) -> int:
    return max((len(column) for name, column in index.columns.items() if not name.endswith(".ends")), default=0)


def _save(index: Index, path: Path, stamp: str) -> bool:
    """Writes the index to its file. Returns whether that was possible."""
    begin, table = 0, {}
    for name, column in index.columns.items():
        table[name] = [column.dtype.str, list(column.shape), begin]
        begin += -(-column.nbytes // _ALIGNED) * _ALIGNED
    head = json.dumps({"stamp": stamp, "facts": index.facts, "columns": table, "bytes": begin}).encode()
    head = _MAGIC + head + b" " * (-(len(_MAGIC) + len(head) + 1) % _ALIGNED) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(head)
            for column in index.columns.values():
                file.write(np.ascontiguousarray(column).data)
                file.write(bytes(-column.nbytes % _ALIGNED))
    except (OSError, EngineError):
        return False
    return True


def _holds(index: Index) -> bool:
    """Returns whether the files of depend_on() are as they were."""
    if "inner" not in index.facts:
        return True
    try:
        return [stamp_of("inner", map(os.fsdecode, index.names("inner")))] == index.facts["inner"]
    except DataError:
        return False


def _load(path: Path, stamp: str) -> Index | None:
    """Returns the index in a file; None if there is none, if it is not of the source as it is now, or if it is
    damaged."""
    try:
        with open(path, "rb") as file:
            if file.readline(len(_MAGIC)) != _MAGIC:
                return None
            head = json.loads(file.readline(_MAX_HEAD))
            begin = file.tell()
        if head["stamp"] != stamp or os.path.getsize(path) != begin + head["bytes"]:
            return None
        content = np.memmap(path, np.uint8, "r") if head["bytes"] else np.empty(0, np.uint8)
        columns = {}
        for name, (dtype, shape, offset) in head["columns"].items():
            kind = np.dtype(dtype)
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            columns[name] = content[begin + offset : begin + offset + size].view(np.ndarray).view(kind).reshape(shape)
        facts = {name: list(map(str, texts)) for name, texts in head["facts"].items()}
        index = Index(columns, facts)
        return index if _holds(index) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
