"""Folders, as copies of data, that a rank would have removed at its end, and that are left where it is killed. Standard
library only."""

import contextlib
import fcntl
import os
import shutil
import time

SECONDS, PAUSE = 2.0, 0.05  # for the locks of a process that is just ending, and of other sentinels


class Leftovers:
    """`note()` while the rank runs, `remove()` when it has ended: well, too, for then there is nothing left."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, ...], list[str]] = {}  # folders -> locks

    def note(self, text: str) -> None:
        """text: JSON of the files whose locks say that a folder is in use, and of the folders."""
        import json

        locks, folders = json.loads(text)
        self._noted[tuple(folders)] = locks

    def forget(self, text: str) -> None:
        """text: JSON of the folders of a note(), if there was one: they are to be kept after all."""
        import json

        self._noted.pop(tuple(json.loads(text)), None)

    def remove(self) -> None:
        """All but what another process uses."""
        until = time.monotonic() + SECONDS
        for folders, locks in self._noted.items():
            while any(map(os.path.lexists, folders)) and not _remove(locks, folders) and time.monotonic() < until:
                time.sleep(PAUSE)


def _remove(locks: list[str], folders: tuple[str, ...]) -> bool:
    """Returns whether the locks could be had."""
    with contextlib.ExitStack() as stack:
        for lock in filter(os.path.lexists, locks):
            try:
                descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return True
