"""A snapshot_prefix belongs to one run: a second one would remove what the first is writing, and mix its files."""

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

RESTART_SECONDS = 10.0  # in which what has died, or is ending, gives its lock back
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without flock
_REMOVE = "; it is another user's: if that run has ended, remove the file"
_MOST_BYTES = 200  # of what a lock's file says
_held: dict[str, int] = {}  # absolute prefix -> descriptor of the file that is locked


def lock_prefix(prefix: str, patience: float = 0) -> bool:
    """Keeps other runs off the files of a snapshot_prefix until this process ends or unlock_prefix(). The system gives
    the lock back whatever ends the process, so that the file of a run that was killed stops nobody, another user in the
    same folder neither.

    Args:
        prefix: of the files' names. Does nothing where this process has it already.
        patience: seconds to wait for a run that is about to end.

    Returns False, after a warning, where the file system has no locks.
    Raises EngineError that names the other run's host and process, or says why the lock's file cannot be opened.
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
    """Gives a snapshot_prefix back; nothing if this process does not have it."""
    descriptor = _held.pop(os.path.abspath(prefix), None)
    if descriptor is not None:
        with contextlib.suppress(OSError):
            _file_of(prefix).unlink()  # while it is locked: who opened it meanwhile sees that it is another now
        os.close(descriptor)


def _file_of(prefix: str) -> Path:
    path = Path(os.path.abspath(prefix))
    return path.with_name(f".{path.name}.lock")


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor of the lock's file, and whether it is another user's, of which this one may only read who has it."""
    flags, is_others = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, False
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
        except PermissionError:
            is_others = path.exists()
            if not is_others:  # it is the folder that cannot be written
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
    """Whether the file has not been removed since it was opened, by the run that had it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False


def _sign(descriptor: int) -> None:
    """Writes who has the lock, for the others' message."""
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


def _forget() -> None:
    """Of a process that a layer has forked: it would hold the lock longer than the run."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


@atexit.register
def _unlock_all() -> None:
    for prefix in list(_held):
        unlock_prefix(prefix)


os.register_at_fork(after_in_child=_forget)
