"""LevelDBs of Datums, which Caffe's tools write by default. plyvel reads them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import tempfile
import threading
import weakref
from collections.abc import Sequence
from types import ModuleType

from engine.data.index import Index, open_index, stamp_of
from engine.data.registry import source
from engine.errors import ConfigError, DataError
from engine.files import reason

_TABLE = re.compile(r"(\d{1,18})\.(?:ldb|sst)", re.ASCII)  # with more digits, LevelDB's next number may be 0
_LOG = re.compile(r"\d{1,18}\.log", re.ASCII)
_MANIFEST = re.compile(r"MANIFEST-\d{1,18}\n", re.ASCII)
_MOST_COPIED = 1 << 30  # bytes; the logs of Caffe's tools have up to 256 MB

# The manifest consists of records, and a record of pieces: checksum, length, kind, content. No piece crosses the border
# of two blocks.
_BLOCK, _PIECE = 32768, struct.Struct("<4xHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4  # kinds
_HEAD = 4096  # bytes at the beginning of a record; they hold its numbers
_COMPARATOR, _LOG_NUMBER, _NEXT_NUMBER, _PREVIOUS_LOG = 1, 2, 3, 9  # fields of a record
_open: weakref.WeakValueDictionary[str, _View] = weakref.WeakValueDictionary()
_opening = threading.Lock()


@source("LEVELDB")
class LevelDbSource:
    """The items of a LevelDB in the order of their keys.

    LevelDB can be opened by one process at a time, and writes when it is opened. So each process opens a view: a
    temporary folder of its own with links to the tables, which nobody writes to once they are made, and copies of the
    other files. The original is only read.
    """

    serialised = True
    classes: list[str] = []

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        if fields:
            raise ConfigError("a LevelDB has no fields: take out data_param.field", where)
        self.path, self._where = path, where
        if not self.recognises(path):
            raise DataError(f"LevelDB not found: {path} (no such folder with a file CURRENT in it)", where)
        files = self.files_of(path, where)
        self._view = _view_of(path, files, where)
        self._keys = open_index(path, "LEVELDB", files, self._build, where).names("keys")
        if not len(self._keys):
            raise DataError(f"LevelDB {path} is empty", where)

    @staticmethod
    def recognises(path: str) -> bool:
        return os.path.isfile(os.path.join(path, "CURRENT"))

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        """Returns all files but those that change whenever somebody opens the LevelDB: its lock and the log of its
        messages."""
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise DataError(f"LevelDB {path}: cannot be read: {reason(error)}", where) from None
        return [os.path.join(path, name) for name in names if name not in ("LOCK", "LOG", "LOG.old")]

    def _build(self) -> Index:
        index = Index({})
        try:
            with self._view.db.iterator(include_value=False) as keys:
                index.add_names("keys", keys)
        except self._view.plyvel.Error as error:
            raise self._error(f"its keys cannot be listed: {_text(error)}") from None
        return index

    def __len__(self) -> int:
        return len(self._keys)

    def item(self, index: int) -> tuple[str, bytes]:
        """Returns (key, serialised Datum) of an item. Raises DataError if the files are damaged."""
        key = self._keys[index]
        name = key.decode(errors="replace")
        try:
            value = self._view.db.get(key, verify_checksums=True)
        except self._view.plyvel.Error as error:
            raise self._error(f"key '{name}': {_text(error)}") from None
        if value is None:
            raise self._error(f"key '{name}' is gone: the files have changed since they were listed")
        return name, value

    def _error(self, what: str) -> DataError:
        return DataError(f"LevelDB {self.path}: {what}", self._where)


class _View:
    """An open LevelDB in a folder of its own, which is removed when nobody reads it any more."""

    def __init__(self, path: str, plyvel: ModuleType):
        self.plyvel = plyvel
        folder = tempfile.mkdtemp(prefix="engine-leveldb-")
        try:
            _fill(folder, os.path.abspath(path))
            self.db = plyvel.DB(folder, create_if_missing=False)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(self, _close, self.db, folder)


def _fill(folder: str, path: str) -> None:
    """Makes the files of a view of the LevelDB at `path`.

    When LevelDB opens the view, it writes what is in the log to a new table, with the next free number; if a link had
    that name, it would write through it to the original. So tables are linked up to that number only: those above it
    were left by a writer that was killed. Raises OSError, ValueError."""
    _size_of(path, "CURRENT")
    with open(os.path.join(path, "CURRENT")) as file:
        current = file.read(100)
    if not _MANIFEST.fullmatch(current):
        raise ValueError("CURRENT names no manifest")
    names = os.listdir(path)
    copied = ["CURRENT", current.rstrip(), *filter(_LOG.fullmatch, names)]
    if (size := sum(_size_of(path, name) for name in copied)) > _MOST_COPIED:
        raise ValueError(f"its logs and its manifest have {size} bytes, more than {_MOST_COPIED}; convert it to LMDB")
    for name in copied:
        shutil.copyfile(os.path.join(path, name), os.path.join(folder, name))
    free = _next_number(os.path.join(folder, current.rstrip()))
    for name in names:
        if (table := _TABLE.fullmatch(name)) and int(table[1]) < free:
            _size_of(path, name)
            os.symlink(os.path.join(path, name), os.path.join(folder, name))


def _size_of(path: str, name: str) -> int:
    """Returns the size of a file in a folder. Raises ValueError for a link, pipe or device: these may lead to any file,
    or have no end."""
    found = os.lstat(os.path.join(path, name))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name} is no regular file")
    return found.st_size


def _next_number(manifest: str) -> int:
    """Returns the number of the next new file as LevelDB finds it: the last one that a record of the manifest has.
    Raises OSError, ValueError."""
    number, record = 0, b""
    with open(manifest, "rb") as file:
        while block := file.read(_BLOCK):
            at = 0
            while at + _PIECE.size <= len(block):
                length, kind = _PIECE.unpack_from(block, at)
                begin, at = at + _PIECE.size, at + _PIECE.size + length
                record = b"" if kind in (_WHOLE, _FIRST) else record
                record += block[begin : min(at, begin + _HEAD - len(record))]
                if kind in (_WHOLE, _LAST):
                    number = _next_number_in(record) or number
    return number


def _next_number_in(record: bytes) -> int:
    """Returns the number of the next new file that a record has, 0 if it has none. Raises ValueError for a number that
    is too large."""
    at = 0  # numbers come first in a record, before the list of tables

    def next_value() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = record[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    with contextlib.suppress(IndexError):  # the end of the record
        while (field := next_value()) in (_COMPARATOR, _LOG_NUMBER, _NEXT_NUMBER, _PREVIOUS_LOG):
            value = next_value()
            if field == _COMPARATOR:
                at += value  # the length of its name
            elif value >> 62:  # the number after the highest is 0
                raise ValueError("its manifest is damaged")
            elif field == _NEXT_NUMBER:
                return value
    return 0


def _close(db: object, folder: str) -> None:
    db.close()  # type: ignore[attr-defined]
    shutil.rmtree(folder, ignore_errors=True)


def _view_of(path: str, files: Sequence[str], where: str | None) -> _View:
    """Returns a view, one for all nets of a process that read the same files. Raises DataError."""
    try:
        import plyvel
    except ImportError:
        raise DataError(
            f"LevelDB {path} needs plyvel: pip install prototxt-engine[leveldb], or convert it to LMDB", where
        ) from None
    stamp = stamp_of("LEVELDB", map(os.path.realpath, files), where)
    with _opening:
        view = _open.get(stamp)
        if view is None:
            try:
                view = _open[stamp] = _View(path, plyvel)
            except (plyvel.Error, OSError, ValueError) as error:
                raise DataError(f"cannot open LevelDB {path}: {_text(error)}", where) from None
        return view


def _text(error: Exception) -> str:
    """Returns an error's message. Those of plyvel are bytes, and shown as b'...'."""
    return reason(error).removeprefix("b'").rstrip("'") if not isinstance(error, OSError) else reason(error)
