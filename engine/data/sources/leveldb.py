"""LevelDBs of Datums, the default of Caffe's tools, read by plyvel."""

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

_TABLE = re.compile(r"(\d{1,18})\.(?:ldb|sst)", re.ASCII)  # more digits: the next number would be 0
_LOG = re.compile(r"\d{1,18}\.log", re.ASCII)
_MANIFEST = re.compile(r"MANIFEST-\d{1,18}\n", re.ASCII)
_MOST_COPIED = 1 << 30  # bytes; the logs of Caffe's tools have up to 256 MB

# Of the manifest: records in pieces, each after its checksum, length and kind, and none across a border of two blocks.
_BLOCK, _PIECE = 32768, struct.Struct("<4xHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
_HEAD = 4096  # bytes of a record in which the numbers are that it begins with
_COMPARATOR, _LOG_NUMBER, _NEXT_NUMBER, _PREVIOUS_LOG = 1, 2, 3, 9
_open: weakref.WeakValueDictionary[str, _View] = weakref.WeakValueDictionary()
_opening = threading.Lock()


@source("LEVELDB")
class LevelDbSource:
    """The items of a LevelDB in the order of their keys.

    LevelDB lets one process in at a time, and writes when it opens. So each process opens a view of its own, a
    temporary folder with links to the tables, which are never written to again, and copies of the rest; the original is
    only read.
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
        """Without the log: what opens the original would change its time."""
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
        """(key, serialised Datum) of the index-th key. Raises DataError where the files are damaged."""
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
    """An open LevelDB in a folder of its own, which goes when nobody reads it any more."""

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
    """Makes the files of a view. LevelDB writes new tables, of what is in the log, under the next free number, and
    through a link of that name. So a table is linked only if its number is taken: others are what a writer that was
    killed has left. Raises OSError, ValueError."""
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
    """Of a file in a folder, which must be no link, pipe or device: those may lead to any file, or have no end."""
    found = os.lstat(os.path.join(path, name))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name} is no regular file")
    return found.st_size


def _next_number(manifest: str) -> int:
    """The number of the next file by the manifest, as LevelDB finds it: the last one that a record says."""
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
    """0 where a record does not say it. Numbers come before the list of tables."""
    at = 0

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
    """One for all nets of a process that read the same files. Raises DataError."""
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
    """plyvel's messages are bytes, in quotes."""
    return reason(error).removeprefix("b'").rstrip("'") if not isinstance(error, OSError) else reason(error)
