"""Reads files with one kind of error for whatever is wrong, and writes files that appear only when they are
complete."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from engine.errors import FILE, EngineError

if TYPE_CHECKING:
    import zipfile
    from hashlib import _Hash

# The names that atomic_path() writes to: the final name, the pid, and a random number, as other hosts have this pid,
# too.
TEMPORARY = re.compile(r"\.(?P<name>.+?)\.\d+(\.[0-9a-f]{8})?\.tmp")
_TEMPORARY_BYTES = len("..4194304.01234567.tmp")


def reason(error: Exception) -> str:
    """Returns why a file cannot be opened, read or written, in a few words."""
    if isinstance(error, MemoryError):
        return "it is too large for the memory that is left"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__  # as of a NUL in a name, or an encoding


def is_regular(path: str | os.PathLike) -> bool:
    """Returns whether there is a regular file of this name: not a folder, a pipe or a device."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def opened(
    path: str | os.PathLike, kind: type[EngineError] = EngineError, where: str | None = None
) -> Iterator[BinaryIO]:
    """Opens a file for reading.

    Args:
        kind: the type of error to raise.
        where: the place that names the file, for the error; None: its path.

    Raises:
        EngineError: of the type `kind`, if the file cannot be read, or is not a regular one: a pipe or a device might
            be read for ever.
    """
    place, named = (where, f"{path}: ") if where else (str(path), "")
    try:
        with open(path, "rb", opener=_opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise kind(f"{named}cannot be read: it is no regular file", place)
            yield file
    except (OSError, ValueError, MemoryError) as error:
        absent = FILE if isinstance(error, FileNotFoundError) else ""
        raise kind(f"{named}cannot be read: {reason(error)}", place, absent=absent) from None


def read_bytes(
    path: str | os.PathLike, kind: type[EngineError] = EngineError, where: str | None = None, most: int = sys.maxsize
) -> bytes:
    """Returns what is in a file; see opened(). Raises its EngineError also for more than `most` bytes."""
    with opened(path, kind, where) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"it has {size} bytes, more than {most}")
        return file.read()


def check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Raises ValueError if the members of a zip file of `size` bytes have more bytes than that: then they share some,
    and a few bytes may stand for very many. Not every release of Python refuses such a file."""
    packed = sum(member.compress_size for member in archive.infolist())
    if packed > size:
        raise ValueError(f"its members have {packed} bytes, the file {size}: they lie in each other")


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # else opening a pipe would wait for its writer


def read_text(
    path: str | os.PathLike, kind: type[EngineError] = EngineError, where: str | None = None, expected: str = ""
) -> str:
    """Returns the text of a file in UTF-8; see read_bytes(). Raises its EngineError also for another encoding.

    Args:
        expected: what should be in the file, for messages.
    """
    place, named = (where, f"{path}: ") if where else (str(path), "")
    try:
        if expected and os.path.isdir(path):
            raise kind(f"{named}is a folder; expected {expected}", place)
        return read_bytes(path, kind, where).decode()
    except UnicodeDecodeError as error:
        wanted = f"; expected {expected}" if expected else ""
        raise kind(f"{named}cannot be read: byte {error.start} is not UTF-8{wanted}", place) from None


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, digest: _Hash | None = None) -> Iterator[BinaryIO]:
    """Opens a file to write that takes its name only when it is whole and on the disk.

    Raises EngineError with the path and the reason; then nothing new is left behind, and what was there stays.

    Args:
        digest: a hash that is updated with what was written.
    """
    with atomic_path(path, digest) as temporary, open(temporary, "xb") as file:
        yield file


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike, digest: _Hash | None = None) -> Iterator[Path]:
    """Does as atomic_write(), for writers that open a file themselves: yields the name to write to.

    A device or a pipe, such as /dev/null, is not replaced, but gets what was written as a whole.
    """
    path = Path(path)
    into = _is_stream(path)
    temporary = unfinished(Path(tempfile.gettempdir(), path.name) if into else path, "tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            if digest is not None:  # before it takes its name, which another run's file may take at once
                take_in(file, digest)
            if into:
                file.seek(0)
                with open(path, "wb") as stream:
                    shutil.copyfileobj(file, stream)
                return
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot be written: {reason(error)}", str(path)) from None
    finally:
        with contextlib.suppress(OSError, ValueError):  # the folder is gone or read-only, which was raised above
            temporary.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Returns whether a path leads to a device or a pipe, or names an open file, as /dev/stdout does."""
    try:
        mode = path.stat().st_mode
        if path.is_symlink() and f"{os.path.realpath(path.parent)}/".startswith(("/dev/", "/proc/")):
            return True
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def unfinished(path: Path, kind: str) -> Path:
    """Returns a name beside `path` that no other process takes, not even one of another host with this one's pid."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.{kind}")


def take_in(file: BinaryIO, digest: _Hash) -> None:
    """Adds the bytes of an open file to a digest."""
    while block := file.read(1 << 20):
        digest.update(block)


def cache_folder() -> Path | None:
    """Returns the folder for what can be computed again, such as indexes and measurements; None if the user has
    none."""
    if named := os.environ.get("ENGINE_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "engine" if os.path.isabs(base) else None


def check_writable(path: str | os.PathLike) -> None:
    """Raises EngineError if atomic_write() would. Call it before hours of work, not after."""
    path = Path(path)
    try:
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise EngineError("cannot be written: no permission", str(path))
            return
        if path.is_dir():
            raise EngineError("cannot be written: it is a folder", str(path))
        if not path.parent.is_dir():
            raise EngineError(f"cannot be written: there is no folder {path.parent}", str(path))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise EngineError(f"cannot be written: no permission to write in {path.parent}", str(path))
        most = os.pathconf(path.parent, "PC_NAME_MAX") - _TEMPORARY_BYTES
        if len(os.fsencode(path.name)) > most:
            raise EngineError(f"cannot be written: expected a name of at most {most} bytes", str(path))
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot be written: {reason(error)}", str(path)) from None


def check_apart(path: str | os.PathLike, *read: str | os.PathLike) -> None:
    """Raises EngineError if a file to write is one of those that are read, even under another name."""
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return
    for each in read:
        with contextlib.suppress(OSError, ValueError):  # it is not there; who reads it will say so
            if os.path.samestat(there, os.stat(each)):
                raise EngineError("cannot be written: it is a file that is read; choose another name", str(path))


def _sync_folder(folder: Path) -> None:
    """Writes a folder's new names to the disk, if the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
