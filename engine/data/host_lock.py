"""Lets one process of a host do what the others wait for: build an index, copy a source."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from engine.errors import DataError

PATIENCE = 600.0  # seconds that a process waits for another one that shows no progress
_POLL = 0.05
_TELL_EVERY = 4096  # items
T = TypeVar("T")


class _Held(threading.local):
    """The locks that this thread holds, and the function that tells its watchdog that it makes progress."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.beat: Callable[[], None] = lambda: None


_held = _Held()


@contextlib.contextmanager
def beating(beat: Callable[[], None]) -> Iterator[None]:
    """Returns a context in which beat() is called when this thread makes progress, or the process that holds the lock
    for which it waits."""
    before, _held.beat = _held.beat, beat
    try:
        yield
    finally:
        _held.beat = before


def getting_on() -> None:
    """Shows the watchdog, and those who wait for the locks of this thread, that it makes progress."""
    _held.beat()
    for descriptor in _held.descriptors:
        os.utime(descriptor)


def watched(items: Iterable[T]) -> Iterator[T]:
    """Yields the items, and calls getting_on() now and then."""
    for number, item in enumerate(items):
        if number % _TELL_EVERY == 0:
            getting_on()
        yield item


@contextlib.contextmanager
def host_lock(name: str, doing: str) -> Iterator[None]:
    """Lets one process of this user on this host in at a time. The system frees the lock whatever ends its holder.

    Args:
        name: what is locked; the same in all processes.
        doing: what the holder does, for the message of those who have waited in vain.

    If the host has no folder for locks that can be trusted, or one without locks, everybody is let in. This costs time
    only: what is guarded is written under another name and then renamed.
    Raises DataError if the holder has not called getting_on() for PATIENCE seconds.
    """
    descriptor = _open(name)
    if descriptor is None:
        yield
        return
    try:
        _wait(descriptor, doing)
        _held.descriptors.append(descriptor)
        try:
            yield
        finally:
            _held.descriptors.remove(descriptor)
    finally:
        os.close(descriptor)


def lock_file(name: str) -> Path | None:
    """Returns the path of the file of host_lock(name); None if the host has no folder for it."""
    folder = lock_folder()
    return folder / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.lock" if folder else None


def _open(name: str) -> int | None:
    """Returns a descriptor of the lock's file; None if it cannot be opened."""
    path = lock_file(name)
    if path is None:
        return None
    with contextlib.suppress(OSError):  # a full disk
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return None


def _wait(descriptor: int, doing: str) -> None:
    end, seen = time.monotonic() + PATIENCE, os.fstat(descriptor).st_mtime_ns
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            return
        if (now := os.fstat(descriptor).st_mtime_ns) != seen:
            end, seen = time.monotonic() + PATIENCE, now
            _held.beat()
        if time.monotonic() >= end:
            raise DataError(f"another process of this host has been {doing} for {PATIENCE:g} s without any progress")
        time.sleep(_POLL)


def lock_folder() -> Path | None:
    """Returns a folder of this host in which only this user can write; None if there is none."""
    folder = Path(tempfile.gettempdir()) / f"engine-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if mine else None
