"""Removes folders, such as copies of data, that a rank removes at its end and leaves when it is killed. Standard
library only."""

import contextlib
import fcntl
import os
import shutil
import time

SECONDS, PAUSE = 2.0, 0.05  # how long, and how often, to try for locks: their holders may be just ending


class Leftovers:
    """note() folders while the rank runs; remove() them when it has ended. If it has ended well, none is there."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, ...], list[str]] = {}  # folders -> locks

    def note(self, text: str) -> None:
        """Remembers folders. text: JSON of [lock files, folders]; who uses the folders holds these locks."""
        import json

        locks, folders = json.loads(text)
        self._noted[tuple(folders)] = locks

    def forget(self, text: str) -> None:
        """Forgets folders, which are to be kept after all. text: JSON of the folders of a note(); unknown ones do no
        harm."""
        import json

        self._noted.pop(tuple(json.loads(text)), None)

    def remove(self) -> None:
        """Removes the folders that no other process uses."""
        until = time.monotonic() + SECONDS
        for folders, locks in self._noted.items():
            while any(map(os.path.lexists, folders)) and not _remove(locks, folders) and time.monotonic() < until:
                time.sleep(PAUSE)


def _remove(locks: list[str], folders: tuple[str, ...]) -> bool:
    """Removes folders if all their locks can be taken; returns whether they could."""
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
