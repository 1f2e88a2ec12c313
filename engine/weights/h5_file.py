"""Reads HDF5 files that nobody vouches for: only what lies in the file itself, and no more than its size allows."""

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

# In a dataset that is compressed, or was never written, a few bytes may stand for terabytes of zeros. A file may give
# so many bytes for each of its own, and so many more.
_BYTES_FOR_EACH = 100
_BYTES_MORE = 64 << 20
# Limits of the search for a member, in seconds of processor time and bytes of memory: in a damaged file libhdf5 may
# search for ever, or take memory for as many parts of a virtual dataset as the file says.
_SECONDS, _BYTES = 2, 1 << 30


def most_bytes(path: str | os.PathLike) -> int:
    """Returns how many bytes of arrays may be read from a file."""
    return _BYTES_MORE + _BYTES_FOR_EACH * os.path.getsize(path)


def import_h5py(what: str, kind: type[EngineError], where: str | None = None) -> ModuleType:
    """Imports h5py, which takes long, and returns it. Raises an error of the type `kind` if it cannot be imported, as
    where its HDF5 does not fit the host's.

    Args:
        what: needs h5py, as the beginning of the message.
        where: the file that the message names.
    """
    try:
        import h5py
    except ImportError as error:
        raise kind(f"{what} h5py, which cannot be imported ({error}); pip install h5py brings it back", where) from None
    return h5py


class H5File:
    """An open file, whose members have paths such as "data/conv1/0".

    It follows hard links only, which stay in the file, and reads only datasets that lie in it: a soft or external link,
    external storage and a virtual dataset may lead to any file of this host. Methods raise the exception that `fail`
    makes of a few words, also in place of whatever h5py raises.
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
        """Closes the file. Of what rows() has returned, arrays can still be read."""
        self._file.close()

    def has(self, name: str) -> bool:
        """Returns whether there is a member of this path, whatever it is. Fails if the group that would hold it is not
        there."""
        group, _, member = name.rpartition("/")
        with self._guarded():
            return self._group(group).get(member, getlink=True) is not None

    def names(self, group: str = "") -> list[str]:
        """Returns the names of a group's members, escaped where they are no UTF-8."""
        with self._guarded():
            found = list(self._group(group))
            return [name if isinstance(name, str) else name.decode(errors="backslashreplace") for name in found]

    def walk(self, group: str) -> Iterator[tuple[str, list[str]]]:
        """Yields a group's path and the names of its members that are not groups; then the same for each group in
        it."""
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
        """Returns the number in a dataset of one number."""
        with self._guarded():
            values = self.numbers(name, np.float64)
            if values.size != 1:
                raise self._fail(f"'{name}' holds {values.size} numbers, expected one")
            return values.item()

    def whole(self, name: str) -> int:
        """Returns the whole number in a dataset of one."""
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
        """Returns an attribute of a group; None if it has none of this name that is a string."""
        with self._guarded():
            value = self._group(group).attrs.get(name)
            return value if isinstance(value, str) else None

    def rows(self, name: str, free: int) -> Rows:
        """Returns a dataset of numbers with at least one axis, to be read row by row.

        A dataset that lies in the file in one piece is mapped into memory, since h5py reads for one thread at a time.
        One of chunks, which may be compressed, is read as a whole if it takes no more than half of the free memory.
        These two are arrays; any other result can be read only while the file is open.

        Args:
            free: bytes of free memory.
        """
        with self._guarded():
            dataset = self._numbers(name)
            if dataset.ndim == 0:
                raise self._fail(f"'{name}' is a single number, expected rows")
            checked_shape(dataset.shape[1:])
            if prod(dataset.shape[1:]) * dataset.dtype.itemsize > self._room or self._chunk_bytes(dataset) > self._room:
                raise self._fail(f"a row of '{name}' is far larger than the file")
            offset = dataset.id.get_offset()
            if offset is not None and dataset.size and not self._file.userblock_size:
                # As a plain array, which gives a row in a fraction of the time that a memmap takes.
                return np.memmap(self._path, dataset.dtype, "r", offset, dataset.shape).view(np.ndarray)
            needed = (dataset.size or 0) * dataset.dtype.itemsize
            if needed <= min(self._room, free // 2):
                self._room -= needed
                return np.asarray(dataset[()])
            if dataset.chunks is None:
                return dataset
            chunks = dataset.chunks, dataset.shape, self._chunk_bytes(dataset)
            del dataset  # while it is open, it keeps the cache that it has
            return self._with_cache(name, *chunks, free // 8)

    def _with_cache(self, name: str, chunks: tuple[int, ...], shape: tuple[int, ...], each: int, most: int) -> Dataset:
        """Opens a dataset with a cache for the chunks that hold the next rows, and as many again: without it they would
        be unpacked anew for each row.

        Args:
            chunks, shape: of the dataset.
            each: bytes of a chunk.
            most: bytes of the cache.
        """
        count = 2 * prod(-(-side // chunk) for side, chunk in zip(shape[1:], chunks[1:], strict=True))
        access = self._h5py.h5p.create(self._h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(max(521, 16 * count), min(count * each, most), 0.75)
        return self._h5py.Dataset(self._h5py.h5d.open(self._file.id, name.encode(), access))

    def _find(self, name: str) -> Any:
        """Returns a member. Fails if a link on the way to it is not a hard link."""
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
        """Limits the search in the block by _SECONDS and _BYTES. One that takes longer ends the process, with a line
        that names the file."""
        from engine.host import _core

        _core.reading(f"HDF5 file {printable(str(self._path))}", b"", _SECONDS)
        try:
            with allowing_memory(_BYTES):
                yield
        finally:
            _core.done_reading()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turns whatever h5py raises in the block into the exception that `fail` makes."""
        try:
            yield
        except EngineError:
            raise
        except Exception as error:  # of any type: it depends on which byte of a file is damaged
            number = getattr(error, "errno", None)
            raise self._fail(os.strerror(number) if number else reason(error).strip("'\"")) from None
