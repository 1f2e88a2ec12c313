"""Writes new LMDBs, which appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import lmdb

from engine.data.appearing import Begin, appearing
from engine.errors import DataError

_COMMIT_EVERY = 1000
_MAP_SIZE = 1 << 40  # address space only, not memory or disk


def check_new(db: str) -> None:
    """Raises DataError if there is something of this name."""
    if os.path.lexists(db):
        raise DataError(f"{db} exists already; remove it, or choose another name")


@contextlib.contextmanager
def new_lmdb(
    db: str, texts: Mapping[str, str] | None = None, begin: Begin | None = None
) -> Iterator[Callable[[bytes, bytes], None]]:
    """Yields a function that puts a key, which must be higher than all before, and its value.

    Args:
        texts: other files to write into the LMDB's folder, by name.
        begin: the function of appearing(), if the LMDB shall appear together with others; None: it appears alone.

    Raises DataError if db exists, a key is too long or not higher, or the disk is full; then nothing is left behind.
    """
    check_new(db)
    with contextlib.ExitStack() as stack:
        temporary = (begin or stack.enter_context(appearing()))(db)
        with _written(db, temporary):
            temporary.mkdir(parents=True)
            # One writer, and durable only when it is complete: no locks, and one sync at the end.
            with lmdb.open(str(temporary), map_size=_MAP_SIZE, lock=False, sync=False, metasync=False) as environment:
                writer = _Writer(environment)
                yield writer.put
                writer.transaction.commit()
                environment.sync(True)
            for name, text in (texts or {}).items():
                (temporary / name).write_text(text, encoding="utf-8", errors="surrogateescape")


@contextlib.contextmanager
def _written(db: str, temporary: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {db}: {error.strerror}") from None
    except lmdb.Error as error:
        # LMDB reports a write that the disk had no room for as an input/output error.
        full = shutil.disk_usage(temporary.parent).free < 1 << 20
        raise DataError(f"cannot write {db}: {'No space left on device' if full else error}") from None


class _Writer:
    def __init__(self, environment: lmdb.Environment):
        self._environment = environment
        self._done = 0
        self.transaction = environment.begin(write=True)

    def put(self, key: bytes, value: bytes) -> None:
        longest = self._environment.max_key_size()
        if len(key) > longest:
            raise DataError(f"path too long for an LMDB's keys ({longest} bytes): {key.decode(errors='replace')}")
        if not self.transaction.put(key, value, append=True):
            raise DataError(
                f"key {key.decode(errors='replace')!r} is not above the one before it, as an LMDB's must be"
            )
        self._done += 1
        if self._done % _COMMIT_EVERY == 0:
            self.transaction.commit()
            self.transaction = self._environment.begin(write=True)
