"""LMDBs of Datums, as Caffe's tools write them."""

from __future__ import annotations

import os
import threading
from array import array
from weakref import WeakValueDictionary

import lmdb

from engine.data.registry import source
from engine.errors import DataError

# LMDB allows one environment per file and process, and a train and a test net may read the same one.
_environments: WeakValueDictionary[str, lmdb.Environment] = WeakValueDictionary()
_opening = threading.Lock()


def _open(path: str, where: str | None, readahead: bool) -> lmdb.Environment:
    """Read-only and without locks, so that it works on read-only and network file systems."""
    data_file = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    if not os.path.isfile(data_file):
        raise DataError(f"LMDB not found: {path} (no such folder with a data.mdb in it)", where)
    real_path = os.path.realpath(data_file)
    with _opening:
        environment = _environments.get(real_path)
        if environment is None:
            try:
                environment = lmdb.open(
                    data_file, subdir=False, readonly=True, lock=False, readahead=readahead, max_spare_txns=16
                )
                _check_size(environment, data_file, where)
            except lmdb.Error as error:
                raise DataError(f"cannot open LMDB {path}: {error}", where) from None
            _environments[real_path] = environment
    return environment


def _check_size(environment: lmdb.Environment, data_file: str, where: str | None) -> None:
    """A file shorter than its header says would end the process with SIGBUS when the missing part is read."""
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = os.path.getsize(data_file)
    if size < expected:
        raise DataError(f"{data_file} is truncated: {size} bytes, its header says {expected}; copy it again", where)


@source("LMDB")
class LmdbSource:
    """The items of an LMDB in the order of their keys."""

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False):
        self.path = path
        self._where = where
        self._environment = _open(path, where, readahead=not shuffled)
        self._size = self._environment.stat()["entries"]
        if self._size == 0:
            raise DataError(f"LMDB {path} is empty", where)
        self._listing = threading.Lock()
        self._keys: bytes | None = None  # all keys, one after the other: a list of a million takes three times as much
        self._ends = array("q")  # where each key ends, after a leading 0

    def __len__(self) -> int:
        return self._size

    def _list_keys(self) -> bytes:
        """Walks over the keys only; no value is read. Returns what becomes _keys."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            keys, ends = bytearray(), array("q", [0])
            for key in cursor.iternext(keys=True, values=False):
                keys += key
                ends.append(len(keys))
        self._ends = ends
        self._keys = bytes(keys)  # last: it tells the other threads that both are there
        return self._keys

    def item(self, index: int) -> tuple[str, bytes]:
        """(key, serialised Datum) of the index-th key. Raises DataError where the file is damaged."""
        try:
            keys = self._keys
            if keys is None:
                with self._listing:
                    keys = self._list_keys() if self._keys is None else self._keys
            key = keys[self._ends[index] : self._ends[index + 1]]
            with self._environment.begin() as transaction:
                return key.decode(errors="replace"), transaction.get(key, b"")
        except lmdb.Error as error:
            raise DataError(f"cannot read item {index} of LMDB {self.path}: {error}", self._where) from None
