"""HDF5 files, read whoever wrote them: what lies in the file itself, and no more than such a file can hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.errors import EngineError, printable
from engine.files import is_regular, reason
from engine.host.memory import allowing_memory
from engine.weights.shapes import MOST_AXES, checked_shape

if TYPE_CHECKING:
    import h5py

Dataset: TypeAlias = "h5py.Dataset"
File: TypeAlias = "h5py.File"
Group: TypeAlias = "h5py.Group"
Rows: TypeAlias = "h5py.Dataset | np.ndarray"  # read row by row

# Compressed, or never written, a few bytes may stand for terabytes of zeros: a file of n bytes may give as many as this
# for each, and a few more.
_BYTES_FOR_EACH = 100
_BYTES_MORE = 64 << 20
# Of the processor's time, and of memory, to find a member: where a file is damaged, libhdf5 may search for ever, and
# takes memory for as many parts of a virtual dataset as it says.
_SECONDS, _BYTES = 2, 1 << 30


def most_bytes(path: str | os.PathLike) -> int:
    """Returns how many bytes may come of a file."""
    return _BYTES_MORE + _BYTES_FOR_EACH * os.path.getsize(path)


def import_h5py(what: str, kind: type[EngineError], where: str | None = None) -> ModuleType:
    """Returns h5py, which takes long to import. Raises an EngineError of the type `kind` where it is broken: its HDF5
    may not fit the host's."""
    try:
        import h5py
    except ImportError as error:
        raise kind(f"{what} h5py, which cannot be imported ({error}); pip install h5py brings it back", where) from None
    return h5py


class H5File:
    """An open file, whose members have paths such as "data/conv1/0".

    Only hard links are followed, which stay in the file, and only datasets are read that lie in it: a soft or external
    link, external storage and a virtual dataset may lead to any file of this host. Whatever h5py raises becomes the
    exception that `fail` makes of a few words.
    """

    def __init__(self, h5py: ModuleType, path: str | os.PathLike, fail: Callable[[str], EngineError]):
        self._h5py, self._path, self._fail = h5py, path, fail
        with self._guarded():
            if os.path.exists(path) and not is_regular(path):  # a pipe would be waited for
                raise fail("it is no regular file")
            with self._searching():
                self._file = h5py.File(path, "r")
            self._room = most_bytes(path)  # for what is still to be read

    def __enter__(self) -> H5File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What rows() has given can be read afterwards where it is an array."""
        self._file.close()

    def has(self, name: str) -> bool:
        """Returns whether there is a member of this path, whatever it is; the group that it is in must be there."""
        group, _, member = name.rpartition("/")
        with self._guarded():
            return self._group(group).get(member, getlink=True) is not None

    def names(self, group: str = "") -> list[str]:
        """Returns the names of a group's members, escaped where they are no UTF-8."""
        with self._guarded():
            found = list(self._group(group))
            return [name if isinstance(name, str) else name.decode(errors="backslashreplace") for name in found]

    def walk(self, group: str) -> Iterator[tuple[str, list[str]]]:
        """Yields a group's path and the names of what is no group in it; then the same of each group within it."""
        seen, waiting = set(), [group]
        while waiting:
            path = waiting.pop()
            with self._guarded():
                address = self._h5py.h5o.get_info(self._group(path).id).addr
                if address in seen:
                    raise self._fail(f"group '{path}' lies in the file twice")
                if path.count("/") > MOST_AXES:
                    raise self._fail(f"more than {MOST_AXES} groups within each other")
                seen.add(address)
                names = self.names(path)
                groups = [name for name in names if isinstance(self._find(f"{path}/{name}"), self._h5py.Group)]
            yield path, [name for name in names if name not in groups]
            waiting += [f"{path}/{name}" for name in reversed(groups)]

    def numbers(self, name: str, dtype: type = np.float32) -> np.ndarray:
        """Returns a dataset of numbers, in its shape."""
        with self._guarded():
            dataset = self._numbers(name)
            shape = checked_shape(dataset.shape)
            self._take(dataset, name)
            return np.asarray(dataset[()], dtype).reshape(shape)

    def number(self, name: str) -> float:
        """Returns the number of a dataset that has one."""
        with self._guarded():
            values = self.numbers(name, np.float64)
            if values.size != 1:
                raise self._fail(f"'{name}' holds {values.size} numbers, expected one")
            return values.item()

    def whole(self, name: str) -> int:
        """Returns the whole number of a dataset that has one."""
        with self._guarded():
            dataset = self._numbers(name)
            if dataset.size != 1 or dataset.dtype.kind not in "iu":
                raise self._fail(f"'{name}' is no whole number")
            return int(np.ravel(dataset[()])[0])

    def text(self, name: str) -> str:
        """Returns the string of a dataset, without the zero byte at its end."""
        with self._guarded():
            dataset = self._dataset(name)
            if dataset.size != 1 or self._h5py.check_string_dtype(dataset.dtype) is None:
                raise self._fail(f"'{name}' is no string")
            self._take(dataset, name)
            return bytes(np.ravel(dataset[()])[0]).rstrip(b"\0").decode()

    def attribute(self, group: str, name: str) -> str | None:
        """Returns an attribute of a group, if it has one of this name that is a string."""
        with self._guarded():
            value = self._group(group).attrs.get(name)
            return value if isinstance(value, str) else None

    def rows(self, name: str, free: int) -> Rows:
        """Returns a dataset of numbers with at least one axis, to be read row by row: mapped into memory where it lies
        in the file in one piece, for h5py reads for one thread at a time; in chunks, which may be compressed, it is
        read as a whole where half of the memory that is free, in bytes, holds it. What is no array can be read while
        the file is open."""
        with self._guarded():
            dataset = self._numbers(name)
            if dataset.ndim == 0:
                raise self._fail(f"'{name}' is a single number, expected rows")
            checked_shape(dataset.shape[1:])
            if prod(dataset.shape[1:]) * dataset.dtype.itemsize > self._room or self._chunk_bytes(dataset) > self._room:
                raise self._fail(f"a row of '{name}' is far larger than the file")
            offset = dataset.id.get_offset()
            if offset is not None and dataset.size and not self._file.userblock_size:
                # A plain array, of which a row is taken in a fraction of the time that a memmap takes.
                return np.memmap(self._path, dataset.dtype, "r", offset, dataset.shape).view(np.ndarray)
            needed = (dataset.size or 0) * dataset.dtype.itemsize
            if needed <= min(self._room, free // 2):
                self._room -= needed
                return np.asarray(dataset[()])
            if dataset.chunks is None:
                return dataset
            chunks = dataset.chunks, dataset.shape, self._chunk_bytes(dataset)
            del dataset  # one that is open keeps its cache
            return self._with_cache(name, *chunks, free // 8)

    def _with_cache(self, name: str, chunks: tuple[int, ...], shape: tuple[int, ...], each: int, most: int) -> Dataset:
        """Opens a dataset with memory for the chunks that rows after each other share, and for the next ones: else
        they would be unpacked anew for each row. each: bytes of a chunk; most: of the cache."""
        count = 2 * prod(-(-side // chunk) for side, chunk in zip(shape[1:], chunks[1:], strict=True))
        access = self._h5py.h5p.create(self._h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(max(521, 16 * count), min(count * each, most), 0.75)
        return self._h5py.Dataset(self._h5py.h5d.open(self._file.id, name.encode(), access))

    def _find(self, name: str) -> Any:
        """Returns a member, after the links that lead to it have been looked at."""
        with self._searching():
            return self._follow(name)

    def _follow(self, name: str) -> Any:
        node = self._file
        for part in filter(None, name.split("/")):
            link = node.get(part, getlink=True) if isinstance(node, self._h5py.Group) else None
            if link is None:
                raise self._fail(f"it has no '{name}'")
            if not isinstance(link, self._h5py.HardLink):
                raise self._fail(f"'{name}' is a link, which is not followed")
            node = node[part]
        return node

    def _group(self, name: str) -> Group:
        node = self._find(name)
        if not isinstance(node, self._h5py.Group):
            raise self._fail(f"'{name}' is no group")
        return node

    def _dataset(self, name: str) -> Dataset:
        node = self._find(name)
        if not isinstance(node, self._h5py.Dataset) or node.shape is None:
            raise self._fail(f"'{name}' is no dataset, or an empty one")
        if node.is_virtual or node.id.get_create_plist().get_external_count():
            raise self._fail(f"'{name}' lies in another file, which is not read")
        return node

    def _numbers(self, name: str) -> Dataset:
        dataset = self._dataset(name)
        if dataset.dtype.kind not in "fiub":
            raise self._fail(f"'{name}' does not hold numbers")
        return dataset

    def _take(self, dataset: Dataset, name: str) -> None:
        """Counts what is read of the file."""
        self._room -= max((dataset.size or 0) * max(dataset.dtype.itemsize, 4), self._chunk_bytes(dataset))
        if self._room < 0:
            raise self._fail(f"'{name}' is far larger than the file")

    @staticmethod
    def _chunk_bytes(dataset: Dataset) -> int:
        """Of the least that is read at a time."""
        return prod(dataset.chunks or (0,)) * dataset.dtype.itemsize

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """A search without an end is the file's fault, and ends the process with a line that names it."""
        from engine.host import _core

        _core.reading(f"HDF5 file {printable(str(self._path))}", b"", _SECONDS)
        try:
            with allowing_memory(_BYTES):
                yield
        finally:
            _core.done_reading()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except EngineError:
            raise
        except Exception as error:  # of any type: it depends on which byte of a file is damaged
            number = getattr(error, "errno", None)
            raise self._fail(os.strerror(number) if number else reason(error).strip("'\"")) from None
