"""Sources whose pictures are members of a folder or an archive: finds the picture, the label and the mask of a sample.

Without any label files, folders are the classes, numbered in alphabetical order, and samples come in the order of
their names. If there are files such as `a.cls` or `a.mask.png`, all files `a.*` are one sample, as in WebDataset's
shards: samples of a tar come in its order, those of a folder or a zip in the order of their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine import proto
from engine.config.numbers import number
from engine.data.decode import FORMATS
from engine.data.host_lock import watched
from engine.data.index import Index, open_index, stamp_of
from engine.errors import DataError

LABEL, MASKS = "cls", ("mask.png", "seg.png", "mask")
_PICTURES = tuple(extension[1:] for extension in FORMATS)


@dataclass
class Member:
    """A file in a folder or an archive.

    place: where its bytes are, as the source's read_at() takes it. identity: in a source of several tars, which of them
    it is in, and its name there."""

    name: str
    place: tuple[int, ...] = ()
    identity: tuple[int, int, str] = (0, 0, "")


@dataclass
class Arranged:
    """The samples of a source: for each its key, its picture, its labels (an empty list if it has none), and its mask
    (`masks` is empty if there are none)."""

    keys: list[str] = field(default_factory=list)
    pictures: list[Member] = field(default_factory=list)
    labels: list[list[float]] = field(default_factory=list)
    masks: list[Member] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


class MemberSource:
    """The base of the sources of folders, zips and tars.

    fields: extensions of the members that the tops are made of, the picture's first."""

    KIND = ""
    SORTED = False  # whether samples come in the order of their names; their files may then lie apart
    classes: list[str]

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        self.path, self.where = path, where
        self._index = open_index(
            path, f"{self.KIND} {' '.join(fields)}", self.files(), lambda: self._build(fields), where
        )
        self.classes = self._index.facts.get("classes", [])
        self._keys = self._index.names("keys")
        self._labels = self._index.columns["labels"]
        self._pictures, self._masks = self._index.columns["pictures"], self._index.columns["masks"]

    def files(self) -> list[str]:
        """Returns the files that the list of members depends on."""
        raise NotImplementedError

    def inner_files(self, members: Sequence[Member]) -> list[str]:
        """Returns the files that the index depends on besides if samples have label files."""
        return []

    def members(self) -> Iterator[Member]:
        """Yields all members in the order of the archive. Raises DataError."""
        raise NotImplementedError

    def read_at(self, name: str, place: Sequence[int]) -> bytes:
        """Returns the bytes of a member. Raises DataError."""
        raise NotImplementedError

    def _build(self, fields: Sequence[str]) -> Index:
        members = list(watched(self.members()))
        labelled = is_labelled(members, fields)
        if labelled and self.SORTED:
            members.sort(key=lambda member: _as_in_folders(member.name))
        inner = self.inner_files(members) if labelled else []
        stamp = stamp_of("inner", inner, self.where)
        found = arrange(members, self.path, fields, lambda member: self.read_at(member.name, member.place), self.where)
        width = len(members[0].place) if members else 0
        index = Index(
            {
                "labels": np.array(found.labels, np.float64).reshape(len(found.keys), -1),
                "pictures": np.array([each.place for each in found.pictures], np.int64).reshape(
                    len(found.pictures), width
                ),
                "masks": np.array([each.place for each in found.masks], np.int64).reshape(len(found.masks), width),
            },
            {"classes": found.classes, "masked": ["yes"] if found.masks else []},
        )
        index.add_names("keys", (os.fsencode(key) for key in found.keys))
        index.add_names("mask names", (os.fsencode(each.name) for each in found.masks))
        if inner:
            index.depend_on(inner, stamp)
        return index

    def __len__(self) -> int:
        return len(self._keys)

    def item(self, index: int) -> tuple[str, proto.Datum]:
        """Returns (key, Datum of an image file). Raises DataError."""
        key = os.fsdecode(self._keys[index])
        datum = proto.Datum(encoded=True, data=self.read_at(key, self._pictures[index].tolist()))
        set_labels(datum, self._labels[index].tolist())
        if self._index.facts["masked"]:
            name = os.fsdecode(self._index.names("mask names")[index])
            datum.mask = self.read_at(name, self._masks[index].tolist())
        return key, datum


def set_labels(datum: proto.Datum, labels: Sequence[float]) -> None:
    """Writes labels to a Datum: a single whole number to Caffe's `label`, anything else to `labels`."""
    if len(labels) == 1 and abs(labels[0]) < 2**31 and labels[0] == int(labels[0]):
        datum.label = int(labels[0])
    else:
        datum.labels.extend(labels)


def read_labels(text: bytes, what: str, where: str | None) -> list[float]:
    """Returns the numbers of a label file. what: the file, for messages. Raises DataError."""
    words = text.decode(errors="replace").split()
    values = [number(word) for word in words]
    if not words or None in values:
        raise DataError(f"{what}: expected a label, or several, as numbers; got {text[:40]!r}", where)
    return [value for value in values if value is not None]


def arrange(members: Sequence[Member], root: str, fields: Sequence[str], read, where: str | None = None) -> Arranged:
    """Puts members together to samples. read: returns the bytes of a member. Raises DataError."""
    if is_labelled(members, fields):
        return _samples(members, root, fields, read, where)
    return _classes(members, root, where)


def is_labelled(members: Sequence[Member], fields: Sequence[str]) -> bool:
    """Returns whether samples have files with labels or masks, or files of `fields`; else folders are the classes."""
    return bool(fields) or any(_extension(member.name) in (LABEL, *MASKS) for member in members)


def _as_in_folders(name: str) -> tuple[str, str]:
    """Returns a sort key that orders names folder by folder, each folder before those below it."""
    folder, name = os.path.split(name)
    return folder.replace("/", "\0"), name


def _extension(name: str) -> str:
    """Returns all after the first dot of a file's name, in small letters."""
    return os.path.basename(name).partition(".")[2].lower()


def _classes(members: Sequence[Member], root: str, where: str | None) -> Arranged:
    # Of several members of one name in one archive, the last counts; other archives may have the name, too.
    last = {(m.name, m.identity): m for m in members if os.path.splitext(m.name)[1].lower() in FORMATS}
    if not last:
        raise DataError(f"{root} has no images in it", where)
    parts = {name: name.split("/") for name, _ in last}
    for name, folders in parts.items():
        if len(folders) == 1:
            raise DataError(
                f"{root}/{name} is in no class folder; move it, or name the pictures and their labels in a list "
                "(ImageData, with this as its root_folder)",
                where,
            )
        if len(folders) > 2:
            raise DataError(f"{root}/{name} is too deep for a class folder; did you mean {root}/{folders[0]}?", where)
    classes = sorted({folders[0] for folders in parts.values()})
    labels = {name: label for label, name in enumerate(classes)}
    pictures = [last[key] for key in sorted(last)]
    keys = [picture.name for picture in pictures]
    return Arranged(keys, pictures, [[labels[parts[key][0]]] for key in keys], [], classes)


def _samples(members: Sequence[Member], root: str, fields: Sequence[str], read, where: str | None) -> Arranged:
    found = Arranged()
    wanted_picture = [name.lower() for name in fields[:1]] or _PICTURES
    others = [name.lower() for name in fields[1:]]
    labels = [name for name in others if name.rpartition(".")[2] not in _PICTURES] if fields else [LABEL]
    masks = [name for name in others if name.rpartition(".")[2] in _PICTURES] if fields else MASKS
    for stem, group in watched(_groups(members)):
        picture = next((group[name] for name in wanted_picture if name in group), None)
        labelled = [group[name] for name in labels if name in group]
        mask = next((group[name] for name in masks if name in group), None)
        if picture is None:
            if not labelled and mask is None:
                continue  # a README
            raise DataError(f"{root}: sample '{stem}' has no picture; it has {', '.join(sorted(group))}", where)
        found.keys.append(picture.name)
        found.pictures.append(picture)
        read_all = (read_labels(read(label), f"{root}: {label.name}", where) for label in labelled)
        found.labels.append([value for values in read_all for value in values])
        found.masks += [mask] if mask is not None else []
        counts = len(found.labels[-1]), len(found.masks)
        if counts[0] != len(found.labels[0]) or counts[1] not in (0, len(found.keys)):
            what = "mask" if counts[1] not in (0, len(found.keys)) else f"{len(found.labels[0])} labels"
            raise DataError(
                f"{root}: sample '{stem}': expected {what}, as the first sample has; got "
                f"{'none' if what == 'mask' else counts[0]}",
                where,
            )
    if not found.keys:
        raise DataError(f"{root} has no samples of {', '.join(fields) or 'pictures'} in it", where)
    if not (found.labels[0] or found.masks):
        raise DataError(f"{root}: sample '{found.keys[0]}' has neither a label ({LABEL}) nor a mask", where)
    return found


def _groups(members: Sequence[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yields (stem, {extension: member}) of members of one stem that follow each other in one file."""
    stem, group = None, {}
    for member in members:
        folder, name = os.path.split(member.name)
        mine = (member.place[0] if len(member.place) == 3 else 0, os.path.join(folder, name.partition(".")[0]))
        if mine != stem:
            if group and stem is not None:
                yield stem[1], group
            stem, group = mine, {}
        group[_extension(member.name)] = member
    if group and stem is not None:
        yield stem[1], group


def without_top(names: Sequence[str]) -> int:
    """Returns how many characters of all names are the only folder of an archive; 0 if that folder is a class."""
    tops = {name.partition("/")[0] for name in names}
    deep = any(name.count("/") > 1 for name in names)
    return len(tops.pop()) + 1 if len(tops) == 1 and deep else 0
