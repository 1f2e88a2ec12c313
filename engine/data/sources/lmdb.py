"""LMDBs of Datums, as Caffe's tools write them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from weakref import WeakValueDictionary

import lmdb

from engine.data.index import Index, Names, open_index
from engine.data.registry import source
from engine.errors import ConfigError, DataError
from engine.files import is_regular, reason
from engine.host import _core

# LMDB allows one environment per file and process, and a train and a test net may read the same one.
_environments: WeakValueDictionary[tuple[int, ...], lmdb.Environment] = WeakValueDictionary()
_opening = threading.Lock()
_MAGIC = (b"\xde\xc0\xef\xbe", b"\xbe\xef\xc0\xde")  # little-endian, big-endian
_AT_ONCE = 4096  # keys
_LEAST_BYTES = 10  # an item takes no fewer in a file: its node's header, and the node's place in its page


@source("LMDB")
class LmdbSource:
    """The items of an LMDB in the order of their keys.

    The library maps the file into memory and trusts what it says: if it is damaged, or is cut off later, reading it may
    raise a signal. So all reading is done between reading() and done_reading(): a signal then ends the process with
    a message that names the file and the key.
    """

    serialised = True
    classes: list[str] = []

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        if fields:
            raise ConfigError("an LMDB has no fields: take out data_param.field", where)
        self.path = path
        self._where = where
        self._name = str(DataError(f"LMDB {path}", where))  # for the message of a signal
        (data_file,) = self.files_of(path)
        if not os.path.isfile(data_file):
            raise DataError(f"LMDB not found: {path} (no such folder with a data.mdb in it)", where)
        with self._guarded(f"cannot open LMDB {path}"):
            self._file = _identity(data_file)
            self._environment = _open(data_file, self._file, readahead=not shuffled)
            last_page, stat = self._environment.info()["last_pgno"], self._environment.stat()
        self._bytes, expected = os.path.getsize(data_file), (last_page + 1) * stat["psize"]
        if self._bytes < expected:  # reading what is missing would raise a signal
            raise DataError(
                f"{data_file} is truncated: {self._bytes} bytes, its header says {expected}; copy it again", where
            )
        self._size = stat["entries"]
        if self._size == 0:
            raise DataError(f"LMDB {path} is empty", where)
        if self._size > self._bytes // _LEAST_BYTES:
            raise self._damaged(f"its header says {self._size} items, in {self._bytes} bytes")
        self._data_file = data_file
        self._listing = threading.Lock()
        self._keys: Names | None = None

    @staticmethod
    def recognises(path: str) -> bool:
        """Returns whether path is a folder with the file that LMDB makes, or such a file."""
        if os.path.isdir(path):
            return os.path.isfile(os.path.join(path, "data.mdb"))
        if not is_regular(path):
            return False
        with open(path, "rb") as file:
            return file.read(20)[16:] in _MAGIC  # after the header of the first page

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        return [os.path.join(path, "data.mdb") if os.path.isdir(path) else path]

    def __len__(self) -> int:
        return self._size

    def _list_keys(self) -> Iterator[bytes]:
        """Yields all keys, in their order, without reading values. Raises DataError."""
        found, size = 0, 0
        with self._guarded(f"cannot list the keys of LMDB {self.path}"):
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                keys = cursor.iternext(keys=True, values=False)
                while several := list(islice(keys, _AT_ONCE)):
                    found, size = found + len(several), size + sum(map(len, several))
                    if found > self._size or size > self._bytes:  # a damaged tree may lead in circles
                        raise self._damaged(f"its tree has more than the {self._size} items that its header says")
                    yield from several
        if found != self._size:
            raise self._damaged(f"its tree has {found} of the {self._size} items that its header says")

    def _build(self) -> Index:
        index = Index({})
        index.add_names("keys", self._list_keys())
        return index

    def _list(self) -> Names:
        """Returns the keys of the open file: from its index, unless another file has its name by now. Raises
        DataError."""
        if _identity(self._data_file) == self._file:
            names = open_index(self.path, "LMDB", [self._data_file], self._build, self._where).names("keys")
            if len(names) == self._size:
                return names
        return self._build().names("keys")

    def item(self, index: int) -> tuple[str, bytes]:
        """Returns (key, serialised Datum) of an item. Raises DataError if the file is damaged."""
        keys = self._keys
        if keys is None:
            with self._listing:
                if self._keys is None:
                    self._keys = self._list()
                keys = self._keys
        key = keys[index]
        _core.reading(self._name, key)
        try:
            with self._environment.begin() as transaction:
                value = transaction.get(key)
        except (lmdb.Error, MemoryError) as error:
            raise self._error(key, reason(error)) from None
        finally:
            _core.done_reading()
        if value is None:
            raise self._error(key, "its tree leads nowhere: the file is damaged; copy it again")
        return key.decode(errors="replace"), value

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Returns a context for reading that concerns no single item. It raises a DataError that begins with `what` for
        an error of the library. If an assertion of the library fails, its own words on stderr are dropped."""
        _core.hold_stderr(True)
        _core.reading(self._name, b"")
        try:
            yield
        except (lmdb.Error, MemoryError) as error:
            raise DataError(f"{what}: {reason(error)}", self._where) from None
        finally:
            _core.done_reading()
            _core.hold_stderr(False)

    def _damaged(self, how: str) -> DataError:
        return DataError(f"LMDB {self.path} is damaged: {how}; copy it again", self._where)

    def _error(self, key: bytes, why: str) -> DataError:
        return DataError(f"LMDB {self.path}: key '{key.decode(errors='replace')}': {why}", self._where)


def _identity(path: str) -> tuple[int, ...]:
    """Returns the device and inode of a file, which no other file gets while it is open; () if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino


def _open(data_file: str, identity: tuple[int, ...], readahead: bool) -> lmdb.Environment:
    """Returns the environment of a file, one per process. It is read-only and without locks, so that it works on
    read-only and network file systems."""
    with _opening:
        environment = _environments.get(identity)
        if environment is None:
            environment = lmdb.open(
                data_file, subdir=False, readonly=True, lock=False, readahead=readahead, max_spare_txns=16
            )
            _environments[identity] = environment
    return environment
