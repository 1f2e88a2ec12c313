"""Folders of image files: the folders within are the classes, or each picture has a file with its label beside it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from engine.data.decode import FORMATS
from engine.data.limits import MAX_BYTES
from engine.data.members import Member, MemberSource
from engine.data.registry import source
from engine.errors import DataError
from engine.files import read_bytes, reason

_MOST_TIMES = 100  # how often links may lead to one folder: 30 folders with two links each to the next are a billion


def files_below(path: str, where: str | None) -> Iterator[str]:
    """Yields the paths, relative to a folder, of all files in it and below. Links are followed, unless one leads back
    to a folder that it is in. Raises DataError if a folder cannot be read, or if links lead to one folder so often that
    listing might not end."""
    # Folders to list: (path relative to `path`, the folders that it is in, by device and inode).
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    times: Counter[tuple[int, int]] = Counter()
    while waiting:
        inside, above = waiting.pop()
        folder = os.path.join(path, inside) if inside else path
        try:
            found = os.stat(folder)
            key = found.st_dev, found.st_ino
            if key in above:
                continue
            times[key] += 1
            if times[key] > _MOST_TIMES:
                raise DataError(f"{folder}: links lead here more than {_MOST_TIMES} times; take some out", where)
            with os.scandir(folder) as entries:
                are_folders = {entry.name: entry.is_dir() for entry in entries}
        except OSError as error:
            raise DataError(f"{folder}: cannot be read: {reason(error)}", where) from None
        before = f"{inside}/" if inside else ""
        yield from (before + name for name in sorted(are_folders) if not are_folders[name])
        below = sorted((name for name in are_folders if are_folders[name]), reverse=True)
        waiting += [(before + name, above | {key}) for name in below]


@source("FOLDER")
class FolderSource(MemberSource):
    """Reads a folder. Its index is valid until a file is added to one of its folders or removed, or a label changes."""

    KIND = "FOLDER"

    @staticmethod
    def recognises(path: str) -> bool:
        return os.path.isdir(path) and not any(os.path.exists(os.path.join(path, n)) for n in ("data.mdb", "CURRENT"))

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        return sorted(os.path.join(path, name) for name in files_below(path, where))

    def files(self) -> list[str]:
        """Returns the folder and those directly in it: a folder's time changes when a name in it does."""
        try:
            with os.scandir(self.path) as entries:
                return [self.path, *sorted(entry.path for entry in entries if entry.is_dir())]
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {reason(error)}", self.where) from None

    def inner_files(self, members: Sequence[Member]) -> list[str]:
        """Returns the label files, which may be edited in place, and the folders that samples are in, however deep."""
        labels = [each.name for each in members if os.path.splitext(each.name)[1].lower() not in FORMATS]
        folders = {str(folder) for each in members for folder in PurePosixPath(each.name).parents}
        return [os.path.join(self.path, name) for name in (*labels, *sorted(folders))]

    def members(self) -> Iterator[Member]:
        for name in files_below(self.path, self.where):
            yield Member(name)

    def read_at(self, name: str, place: Sequence[int]) -> bytes:
        return read_bytes(os.path.join(self.path, name), DataError, self.where, MAX_BYTES)
