"""Files of images under one root: a folder, a .zip, a .tar, or a folder inside one (data.zip/train); lists of them."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from engine import files
from engine.config.numbers import number, whole
from engine.data.decode import FORMATS
from engine.data.limits import MAX_BYTES
from engine.data.members import Member
from engine.data.shards import Shards
from engine.data.tar_file import list_shards
from engine.errors import DamagedItem, DataError

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others cannot be unpacked within a limit


class FolderTree:
    """The files below a folder. Their names are paths below the root, with forward slashes."""

    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def has(self, name: str) -> bool:
        return files.is_regular(self._root / name)

    def read(self, name: str) -> bytes:
        """Raises DataError."""
        return files.read_bytes(self._root / name, DataError, most=MAX_BYTES)


class ZipTree:
    """The members of a zip file below a prefix ("" or "folder/"). read() may be called by many threads."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, prefix: str):
        self._path = path
        self._archive = archive
        self._prefix = prefix

    def names(self) -> list[str]:
        inside = (name for name in self._archive.namelist() if name.startswith(self._prefix))
        return sorted(name[len(self._prefix) :] for name in inside if name and not name.endswith("/"))

    def has(self, name: str) -> bool:
        return self._prefix + name in self._archive.NameToInfo

    def read(self, name: str) -> bytes:
        """Raises DataError, DamagedItem."""
        member = self._prefix + name
        with _reading(self._path, f"member '{member}' cannot be read", name):
            info = self._archive.getinfo(member)
            if info.compress_type not in _METHODS:
                raise ValueError(f"it is packed by method {info.compress_type}, expected deflate or none")
            if info.file_size > MAX_BYTES:
                raise ValueError(f"it has {info.file_size} bytes, more than {MAX_BYTES}")
            with self._archive.open(member) as file:
                return file.read(info.file_size)  # the number: a member that lies about its size is not unpacked whole


class TarTree:
    """The members of a tar; of several members of one name, the last counts."""

    def __init__(self, path: Path, inside: str):
        self._shards = Shards([str(path)], None)
        prefix = "" if inside == "." else f"{inside}/"
        found = [each for each in list_shards(self._shards) if each.name.startswith(prefix)]
        self._members: dict[str, Member] = {each.name[len(prefix) :]: each for each in found}
        tops = {name.partition("/")[0] for name in self._members}
        if not prefix and len(tops) == 1:  # as in a zip, the only folder is the root
            only = f"{tops.pop()}/"
            if all(name.startswith(only) for name in self._members):
                self._members = {name[len(only) :]: each for name, each in self._members.items()}
        if prefix and not found:
            raise self._shards.error(0, f"it has no folder {inside}")

    def names(self) -> list[str]:
        return sorted(self._members)

    def has(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        """Raises DataError."""
        member = self._members.get(name)
        if member is None:
            raise self._shards.error(0, f"it has no member '{name}'")
        shard, offset, size = member.place
        return self._shards.read(shard, offset, size)


Tree: TypeAlias = "FolderTree | ZipTree | TarTree"


@contextlib.contextmanager
def _reading(path: Path, failed: str, item: str | None = None) -> Iterator[None]:
    """Returns a context that raises DataError for whatever the libraries raise: for a damaged archive that is nearly
    anything. With `item`, it raises DamagedItem if that member is damaged."""
    try:
        yield
    except Exception as error:
        why = "it ends too early" if isinstance(error, EOFError) else files.reason(error)
        if item is None or isinstance(error, KeyError | OSError | MemoryError):  # missing, or not readable now
            raise DataError(f"{failed}: {why}", str(path)) from None
        raise DamagedItem(f"{failed}: {why}", item, str(path)) from None


def open_tree(root: str) -> Tree:
    """Opens a folder, a zip or a tar, or a folder within one of these. If an archive has one folder and nothing else,
    that folder is the root. Raises DataError if there is no such folder, zip or tar."""
    path = Path(root)
    if os.path.isdir(path):
        return FolderTree(path)
    for candidate in (path, *path.parents):
        if files.is_regular(candidate):
            inside = path.relative_to(candidate).as_posix()
            if zipfile.is_zipfile(candidate) or candidate.suffix.lower() not in (".tar", ".tgz", ".gz"):
                return _open_zip(candidate, inside)
            return TarTree(candidate, inside)
    raise DataError("no such folder, zip or tar file", root)


def _open_zip(path: Path, inside: str) -> ZipTree:
    with _reading(path, "neither a folder nor a zip file that can be read"):
        archive = zipfile.ZipFile(path)
        files.check_members(archive, os.path.getsize(path))
    if inside != ".":
        tree = ZipTree(path, archive, f"{inside}/")
        if not tree.names():
            raise DataError(f"{path} has no folder {inside}")
        return tree
    tops = {parts[0] for name in archive.namelist() if (parts := PurePosixPath(name).parts)}
    only = f"{tops.pop()}/" if len(tops) == 1 else ""
    return ZipTree(path, archive, only if any(name.startswith(only) for name in archive.namelist()) else "")


def read_text(path: str, where: str | None = None, expected: str = "") -> str:
    """Returns the text of a file, which may lie in an archive, too.

    where: the place that names the file, for messages. expected: as in files.read_text(). Raises DataError."""
    folder, name = os.path.split(path)
    if os.path.isdir(folder or "."):
        return files.read_text(path, DataError, where, expected)
    try:
        return open_tree(folder).read(name).decode()
    except UnicodeDecodeError as error:
        wanted = f"; expected {expected}" if expected else ""
        raise DataError(f"{path}: cannot be read: byte {error.start} is not UTF-8{wanted}", where) from None
    except DataError as error:
        raise DataError(str(error), where) from None


class Listed(NamedTuple):
    """A line of a list: the name of a picture, and its labels or the name of its mask."""

    name: str
    labels: tuple[float, ...] = ()
    mask: str = ""


def read_list(path: str, where: str | None = None, bare: bool = False) -> list[Listed]:
    """Returns the lines of a list: `relative/path label`, with several labels `a.jpg 1 0 1`, or with a mask
    `a.jpg a.png`.

    Labels stand behind blanks or tabs; paths of lines with labels may hold spaces. bare: lines may also be paths alone.
    Raises DataError, also if lines have different numbers of labels.
    """
    entries: list[Listed] = []
    text = read_text(path, where, "a text file of lines `relative/path label`")
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        entry = _listed(line.strip(), bare)
        if entry is None or "\0" in line:
            hint = "; a label is a whole number of 32 bits, or has a point" if _ends_in_number(line) else ""
            raise DataError(f"expected `relative/path label`; got {line!r}{hint}", f"{path}:{line_number}")
        if entries and (len(entry.labels), bool(entry.mask)) != (len(entries[0].labels), bool(entries[0].mask)):
            first = "a mask" if entries[0].mask else f"{len(entries[0].labels)} labels"
            raise DataError(f"expected {first}, as on the first line; got {line!r}", f"{path}:{line_number}")
        entries.append(entry)
    if not entries:
        raise DataError(f"{path} has no lines in it", where)
    return entries


def _listed(line: str, bare: bool) -> Listed | None:
    """Parses a line of a list; None if it is not one."""
    name, labels = line, []
    while (end := max(name.rfind(" "), name.rfind("\t"))) >= 0 and (label := _label(name[end + 1 :])) is not None:
        name, labels = name[:end].rstrip(), [label, *labels]
    if labels:
        return Listed(name, tuple(labels)) if name else None
    words = line.split("\t") if "\t" in line else line.split()
    if len(words) == 2 and all(os.path.splitext(word)[1].lower() in FORMATS for word in words):
        return Listed(words[0].strip(), (), words[1].strip())
    is_picture = bare and os.path.splitext(line)[1].lower() in FORMATS
    return Listed(line) if is_picture else None


def _ends_in_number(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and words[-1].lstrip("+-").isdecimal()


def _label(text: str) -> float | None:
    """Returns the label in a text: a whole number of 32 bits, or a number with a point or an exponent; else None."""
    value = whole(text, -(2**31), 2**31 - 1)
    return number(text) if value is None and any(sign in text for sign in ".eE") else value
