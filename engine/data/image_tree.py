"""Files of images under one root: a folder, a .zip, or a folder inside a .zip (data.zip/train)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

from engine.data.decode import FORMATS
from engine.errors import DataError

class FolderTree:
    """Names are paths below the root, with forward slashes."""

    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        """Raises OSError."""
        return (self._root / name).read_bytes()


class ZipTree:
    """The same for the members of a zip file below a prefix ("" or "folder/"). read() may be called by many threads."""

    def __init__(self, archive: zipfile.ZipFile, prefix: str):
        self._archive = archive
        self._prefix = prefix

    def names(self) -> list[str]:
        inside = (name for name in self._archive.namelist() if name.startswith(self._prefix) and name[-1] != "/")
        return sorted(name[len(self._prefix) :] for name in inside)

    def read(self, name: str) -> bytes:
        """Raises OSError."""
        try:
            return self._archive.read(self._prefix + name)
        except KeyError:
            raise FileNotFoundError(2, "not in the zip file") from None
        except zipfile.BadZipFile as error:
            raise OSError(5, str(error)) from None


def open_tree(root: str) -> FolderTree | ZipTree:
    """Raises DataError where there is no such folder or zip. A zip whose only entry is one folder means that folder."""
    path = Path(root)
    if path.is_dir():
        return FolderTree(path)
    for candidate in (path, *path.parents):
        if candidate.is_file():
            return _open_zip(candidate, path.relative_to(candidate).as_posix())
    raise DataError(f"{root}: no such folder or zip file")


def _open_zip(path: Path, inside: str) -> ZipTree:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} is neither a folder nor a zip file that can be read: {error}") from None
    if inside != ".":
        tree = ZipTree(archive, f"{inside}/")
        if not tree.names():
            raise DataError(f"{path} has no folder {inside}")
        return tree
    tops = {PurePosixPath(name).parts[0] for name in archive.namelist()}
    only = tops.pop() if len(tops) == 1 else ""
    return ZipTree(archive, f"{only}/" if any(name.startswith(f"{only}/") for name in archive.namelist()) else "")


def read_text(path: str, where: str | None = None) -> str:
    """A text file, which may lie in a zip file too; where: who asks for it. Raises DataError."""
    folder, name = os.path.split(path)
    try:
        return open_tree(folder or ".").read(name).decode()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", where) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}", where) from None


def class_folders(tree: FolderTree | ZipTree, root: str) -> list[tuple[str, int]]:
    """(name, label) of all images in root's folders, which are the classes, numbered in alphabetical order.
    Raises DataError where the images lie elsewhere."""
    images = [PurePosixPath(name) for name in tree.names() if PurePosixPath(name).suffix.lower() in FORMATS]
    if not images:
        raise DataError(f"{root} has no images in it")
    for image in images:
        if len(image.parts) == 1:
            raise DataError(f"{root}/{image} is in no class folder; move it, or give a LIST of `path label` lines")
        if len(image.parts) > 2:
            raise DataError(f"{root}/{image} is too deep for a class folder; did you mean {root}/{image.parts[0]}?")
    labels = {name: label for label, name in enumerate(sorted({image.parts[0] for image in images}))}
    return [(str(image), labels[image.parts[0]]) for image in images]


def read_list(path: str, where: str | None = None) -> list[tuple[str, int]]:
    """(name, label) of each line "relative/path label"; the path may hold spaces. Raises DataError."""
    entries = []
    for number, line in enumerate(read_text(path, where).splitlines(), 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.lstrip("-").isdecimal() or not -(2**31) <= int(label) < 2**31:
            raise DataError(f"expected `relative/path label`; got {line!r}", f"{path}:{number}")
        entries.append((name.strip(), int(label)))
    if not entries:
        raise DataError(f"{path} has no lines in it", where)
    return entries
