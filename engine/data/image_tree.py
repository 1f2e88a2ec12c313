"""Files of images under one root: a folder, a .zip, or a folder inside a .zip (data.zip/train)."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine import files
from engine.config.numbers import whole
from engine.data.decode import FORMATS
from engine.data.limits import MAX_BYTES
from engine.errors import DataError

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others cannot be unpacked within a limit


class FolderTree:
    """Names are paths below the root, with forward slashes."""

    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        """Raises DataError."""
        return files.read_bytes(self._root / name, DataError, most=MAX_BYTES)


class ZipTree:
    """The same for the members of a zip file below a prefix ("" or "folder/"). read() may be called by many threads."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, prefix: str):
        self._path = path
        self._archive = archive
        self._prefix = prefix

    def names(self) -> list[str]:
        inside = (name for name in self._archive.namelist() if name.startswith(self._prefix))
        return sorted(name[len(self._prefix) :] for name in inside if name and not name.endswith("/"))

    def read(self, name: str) -> bytes:
        """Raises DataError."""
        member = self._prefix + name
        with _reading(self._path, f"member '{member}' cannot be read"):
            info = self._archive.getinfo(member)
            if info.compress_type not in _METHODS:
                raise ValueError(f"it is packed by method {info.compress_type}, expected deflate or none")
            if info.file_size > MAX_BYTES:
                raise ValueError(f"it has {info.file_size} bytes, more than {MAX_BYTES}")
            with self._archive.open(member) as file:
                return file.read(info.file_size)  # without a number, what says to be small would be unpacked whole


@contextlib.contextmanager
def _reading(path: Path, failed: str) -> Iterator[None]:
    """Raises DataError for whatever the libraries raise, which is nearly anything for a damaged archive."""
    try:
        yield
    except Exception as error:
        why = "it ends too early" if isinstance(error, EOFError) else files.reason(error)
        raise DataError(f"{failed}: {why}", str(path)) from None


def open_tree(root: str) -> FolderTree | ZipTree:
    """Raises DataError where there is no such folder or zip. A zip whose only entry is one folder means that folder."""
    path = Path(root)
    if os.path.isdir(path):
        return FolderTree(path)
    for candidate in (path, *path.parents):
        if files.is_regular(candidate):
            return _open_zip(candidate, path.relative_to(candidate).as_posix())
    raise DataError("no such folder or zip file", root)


def _open_zip(path: Path, inside: str) -> ZipTree:
    with _reading(path, "neither a folder nor a zip file that can be read"):
        archive = zipfile.ZipFile(path)
    if inside != ".":
        tree = ZipTree(path, archive, f"{inside}/")
        if not tree.names():
            raise DataError(f"{path} has no folder {inside}")
        return tree
    tops = {parts[0] for name in archive.namelist() if (parts := PurePosixPath(name).parts)}
    only = f"{tops.pop()}/" if len(tops) == 1 else ""
    return ZipTree(path, archive, only if any(name.startswith(only) for name in archive.namelist()) else "")


def read_text(path: str, where: str | None = None) -> str:
    """A text file, which may lie in a zip file too; where: who asks for it. Raises DataError."""
    folder, name = os.path.split(path)
    if os.path.isdir(folder or "."):
        return files.read_text(path, DataError, where)
    try:
        return open_tree(folder).read(name).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: cannot be read: byte {error.start} is not UTF-8", where) from None
    except DataError as error:
        raise DataError(str(error), where) from None


def class_folders(tree: FolderTree | ZipTree, root: str) -> list[tuple[str, int]]:
    """(name, label) of all images in root's folders, which are the classes, numbered in alphabetical order.
    Raises DataError where the images lie elsewhere."""
    names = [name for name in tree.names() if os.path.splitext(name)[1].lower() in FORMATS]
    images = {name: PurePosixPath(name).parts for name in names}
    if not images:
        raise DataError(f"{root} has no images in it")
    for name, parts in images.items():
        if len(parts) == 1:
            raise DataError(f"{root}/{name} is in no class folder; move it, or give a LIST of `path label` lines")
        if len(parts) > 2:
            raise DataError(f"{root}/{name} is too deep for a class folder; did you mean {root}/{parts[0]}?")
    labels = {folder: label for label, folder in enumerate(sorted({parts[0] for parts in images.values()}))}
    return [(name, labels[parts[0]]) for name, parts in images.items()]


def read_list(path: str, where: str | None = None) -> list[tuple[str, int]]:
    """(name, label) of each line "relative/path label"; the path may hold spaces. Raises DataError."""
    entries = []
    for number, line in enumerate(read_text(path, where).splitlines(), 1):
        if not line.strip():
            continue
        name, _, text = line.strip().rpartition(" ")
        label = whole(text, -(2**31), 2**31 - 1)
        if not name or "\0" in name or label is None:
            raise DataError(f"expected `relative/path label`; got {line!r}", f"{path}:{number}")
        entries.append((name.strip(), label))
    if not entries:
        raise DataError(f"{path} has no lines in it", where)
    return entries
