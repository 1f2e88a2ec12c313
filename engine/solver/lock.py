"""Locks a snapshot_prefix for one run: a second run would remove what the first is writing, and mix up their files."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from engine.errors import EngineError
from engine.files import reason
from engine.report.log import warn

RESTART_SECONDS = 10.0  # within which a run that has died, or is ending, gives its lock back
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without flock answer
_REMOVE = "; it is another user's: if that run has ended, remove the file"
_MOST_BYTES = 200  # the most that is read of a lock file
_held: dict[str, int] = {}  # absolute prefix -> descriptor of the file that is locked


def lock_prefix(prefix: str, patience: float = 0) -> bool:
    """Keeps other runs off the files of a snapshot_prefix until this process ends or calls unlock_prefix().

    The system releases the lock whatever ends the process, so the lock file of a killed run stops nobody, not even
    another user of the folder. Does nothing if this process has the lock already.

    Args:
        prefix: the snapshot_prefix.
        patience: seconds to wait for a run that is about to end.

    Returns False, after a warning, if the file system has no locks; else True.
    Raises EngineError that names the other run's host and process, or says why the lock file cannot be opened.
    """
    key, path = os.path.abspath(prefix), _file_of(prefix)
    end = time.monotonic() + patience
    while key not in _held:
        descriptor, is_others = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(descriptor, path):
                continue
            if is_others:
                path.unlink(missing_ok=True)
            else:
                _held[key] = descriptor
                _sign(descriptor)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise EngineError(
                    f"snapshot_prefix '{prefix}' is in use by {_holder(descriptor)}: stop that run, or give this one "
                    "another in its solver's file (engine train: --set snapshot_prefix=PATH)"
                ) from None
            time.sleep(0.1)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                advice = _REMOVE if is_others else ""
                raise EngineError(f"cannot be locked: {reason(error)}{advice}", str(path)) from None
            warn(f"{path}: its file system has no locks: nothing keeps a second run off this snapshot_prefix")
            return False
        finally:
            if key not in _held:
                os.close(descriptor)
    return True


def unlock_prefix(prefix: str) -> None:
    """Releases the lock of a snapshot_prefix. Does nothing if this process does not have it."""
    descriptor = _held.pop(os.path.abspath(prefix), None)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            _file_of(prefix).unlink()  # while it is locked: a run that has it open sees by _is_still() that it is gone
        os.close(descriptor)


def _file_of(prefix: str) -> Path:
    path = Path(os.path.abspath(prefix))
    return path.with_name(f".{path.name}.lock")


def _open(path: Path) -> tuple[int, bool]:
    """Opens the lock file. Returns its descriptor, and whether it is another user's file, which can only be read."""
    flags, is_others = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, False
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except PermissionError:
            is_others = path.exists()
            if not is_others:  # the folder cannot be written to
                raise
            descriptor = os.open(path, os.O_RDONLY | flags)
    except (OSError, ValueError) as error:
        advice = _REMOVE if is_others else ""
        raise EngineError(f"cannot be locked: {reason(error)}{advice}", str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise EngineError("cannot be locked: it is no regular file", str(path))
    return descriptor, is_others


def _is_still(descriptor: int, path: Path) -> bool:
    """Tells whether `path` is still the file that was opened: the run that had the lock may have removed it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False


def _sign(descriptor: int) -> None:
    """Writes into the lock file who has the lock, for the error of other runs."""
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()} {time.ctime()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    """Returns what the run that has the lock wrote about itself."""
    words = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").split(maxsplit=2)
    if len(words) < 3:  # it has just been opened
        return "another run"
    host, process, since = words
    return f"process {process} on {host}, since {since.strip()}"


def _forsake_all() -> None:
    """Gives up the locks in a process that a layer has forked, which would hold them longer than the run."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


@atexit.register
def _unlock_all() -> None:
    for prefix in list(_held):
        unlock_prefix(prefix)


os.register_at_fork(after_in_child=_forsake_all)
