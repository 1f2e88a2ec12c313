"""LevelDBs of Datums, the default of Caffe's tools, read by plyvel."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from types import ModuleType

from engine.data.index import Index, open_index
from engine.data.registry import source
from engine.errors import ConfigError, DataError
from engine.files import reason

_TABLES = (".ldb", ".sst")  # which are never written to again
_open: weakref.WeakValueDictionary[str, _View] = weakref.WeakValueDictionary()
_opening = threading.Lock()


@source("LEVELDB")
class LevelDbSource:
    """The items of a LevelDB in the order of their keys.

    LevelDB lets one process in at a time, and writes when it opens. So each process opens a view of its own, a
    temporary folder with links to the tables and copies of the rest, and the original is only read.
    """

    serialised = True
    classes: list[str] = []

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        if fields:
            raise ConfigError("a LevelDB has no fields: take out data_param.field", where)
        self.path, self._where = path, where
        if not self.recognises(path):
            raise DataError(f"LevelDB not found: {path} (no such folder with a file CURRENT in it)", where)
        self._view = _view_of(path, where)
        try:
            # Without the log: what opens the original would change its time.
            files = sorted(
                os.path.join(path, name) for name in os.listdir(path) if name not in ("LOCK", "LOG", "LOG.old")
            )
        except OSError as error:
            raise DataError(f"LevelDB {path}: cannot be read: {reason(error)}", where) from None
        self._keys = open_index(path, "LEVELDB", files, self._build, where).names("keys")
        if not len(self._keys):
            raise DataError(f"LevelDB {path} is empty", where)

    @staticmethod
    def recognises(path: str) -> bool:
        return os.path.isfile(os.path.join(path, "CURRENT"))

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
            for name in os.listdir(path):
                original = os.path.join(os.path.abspath(path), name)
                if name.endswith(_TABLES):
                    os.symlink(original, os.path.join(folder, name))
                elif name == "CURRENT" or name.startswith("MANIFEST") or name.endswith(".log"):
                    shutil.copyfile(original, os.path.join(folder, name))
            self.db = plyvel.DB(folder, create_if_missing=False)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(self, _close, self.db, folder)


def _close(db: object, folder: str) -> None:
    db.close()  # type: ignore[attr-defined]
    shutil.rmtree(folder, ignore_errors=True)


def _view_of(path: str, where: str | None) -> _View:
    """One for all nets of a process. Raises DataError."""
    try:
        import plyvel
    except ImportError:
        raise DataError(
            f"LevelDB {path} needs plyvel: pip install prototxt-engine[leveldb], or convert it to LMDB", where
        ) from None
    real_path = os.path.realpath(path)
    with _opening:
        view = _open.get(real_path)
        if view is None:
            try:
                view = _open[real_path] = _View(path, plyvel)
            except (plyvel.Error, OSError) as error:
                raise DataError(f"cannot open LevelDB {path}: {_text(error)}", where) from None
        return view


def _text(error: Exception) -> str:
    """plyvel's messages are bytes, in quotes."""
    return reason(error).removeprefix("b'").rstrip("'") if not isinstance(error, OSError) else reason(error)
