"""Tars of image files: class folders, WebDataset's shards (`a.jpg`, `a.cls`), and tars of tars such as ILSVRC2012's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.data.host_lock import watched
from engine.data.members import Member, MemberSource, without_top
from engine.data.registry import source
from engine.data.shards import Shards, expand, is_pattern
from engine.data.tar_file import list_shards
from engine.files import is_regular


@source("TAR")
class TarSource(MemberSource):
    """Reads one tar, or shards such as train-{000000..000146}.tar. Nothing is unpacked: members are read where they
    are, in any order."""

    KIND = "TAR 2"  # version 1 of the index had no hard links, and only one picture of each name

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        self._shards = Shards(expand(path, where), where)
        super().__init__(path, where, shuffled, fields)

    @staticmethod
    def recognises(path: str) -> bool:
        if path.lower().rstrip("}").endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
            return is_pattern(path) or is_regular(path)
        if not is_regular(path):
            return False
        with open(path, "rb") as file:
            return file.read(262)[257:] == b"ustar"

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        return expand(path, where)

    def files(self) -> list[str]:
        return self._shards.paths

    def members(self) -> Iterator[Member]:
        found = list(watched(list_shards(self._shards)))
        skipped = without_top([member.name for member in found])
        return (replace(member, name=member.name[skipped:]) for member in found)

    def read_at(self, name: str, place: Sequence[int]) -> bytes:
        shard, offset, size = place
        return self._shards.read(shard, offset, size)
