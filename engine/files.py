"""Atomic file writes: a file appears under its name only when it is complete and on the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.errors import EngineError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write that takes its name only when it is whole and on the disk.

    Raises EngineError with the path and the reason; then nothing new is left behind, and what was there stays.
    """
    with atomic_path(path) as temporary, open(temporary, "xb") as file:
        yield file


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """atomic_write() for writers that open a file themselves: yields the name to write to."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise EngineError(f"cannot be written: {error.strerror or str(error).splitlines()[0]}", str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike) -> None:
    """Raises EngineError where atomic_write() would: better before hours of work than after."""
    path = Path(path)
    if path.is_dir():
        raise EngineError("cannot be written: it is a folder", str(path))
    if not path.parent.is_dir():
        raise EngineError(f"cannot be written: there is no folder {path.parent}", str(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise EngineError(f"cannot be written: no permission to write in {path.parent}", str(path))


def _sync_folder(folder: Path) -> None:
    """Puts the new name on the disk, too, where the file system lets folders be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
