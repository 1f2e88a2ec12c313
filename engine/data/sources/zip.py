"""Zips of image files, or folders in one (data.zip/train), read as a folder on the disk is."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.data.limits import MAX_BYTES
from engine.data.members import Member, MemberSource, without_top
from engine.data.registry import source
from engine.data.shards import Shards
from engine.errors import DamagedItem, DataError
from engine.files import check_members, is_regular, reason

_MAGIC = b"PK\3\4"
_LOCAL_HEADER = 30  # bytes before a member's name and extra field, whose lengths are the last two numbers in them


@source("ZIP")
class ZipSource(MemberSource):
    """Reads members by their places in the file, from several threads at once. The module zipfile lists them only: an
    open archive holds 1 KB for each member."""

    KIND = "ZIP 2"  # version 1 of the index had the samples in the order of the archive
    SORTED = True  # programs that write zips follow no order

    def __init__(self, path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = ()):
        self._file, self._inside = _split(path, where)
        self._shards = Shards([self._file], where)
        super().__init__(path, where, shuffled, fields)

    @staticmethod
    def recognises(path: str) -> bool:
        try:
            file, _ = _split(path, None)
        except DataError:
            return False
        with open(file, "rb") as begin:  # a zip that is cut off has lost its directory, at the end, but begins as one
            return begin.read(len(_MAGIC)) == _MAGIC or zipfile.is_zipfile(file)

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        return [_split(path, where)[0]]

    def files(self) -> list[str]:
        return [self._file]

    def members(self) -> Iterator[Member]:
        """Yields the members in the order of the archive. A place is (offset of the local header, packed bytes,
        unpacked bytes, checksum, method). Raises DataError."""
        try:
            with zipfile.ZipFile(self._file) as archive:
                check_members(archive, self._shards.size(0))
                entries = [each for each in archive.infolist() if not each.filename.endswith("/")]
        except Exception as error:  # zipfile raises nearly any type for a damaged archive
            if not zipfile.is_zipfile(self._file):
                raise self._shards.error(
                    0, "it has no directory at its end, as a zip has: it is truncated; copy it again"
                ) from None
            raise self._shards.error(0, f"no zip file that can be read: {reason(error)}") from None
        names = [each.filename.removeprefix("./") for each in entries]
        prefix = f"{self._inside}/" if self._inside else ""
        skipped = len(prefix) or without_top(names)
        inside = [(name, entry) for name, entry in zip(names, entries, strict=True) if name.startswith(prefix)]
        if prefix and not inside:
            raise self._shards.error(0, f"it has no folder {self._inside}")
        for name, entry in inside:
            place = (entry.header_offset, entry.compress_size, entry.file_size, entry.CRC, entry.compress_type)
            if max(place) >= 1 << 63:  # zip64 has room for more than any file can have
                raise self._shards.error(0, f"member '{name}' is at byte {place[0]} and has {place[2]} bytes: damaged?")
            yield Member(name[skipped:], place)

    def read_at(self, name: str, place: Sequence[int]) -> bytes:
        offset, packed, size, checksum, method = place
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._error(name, f"it is packed by method {method}, expected deflate or none")
        if size > MAX_BYTES:
            raise self._error(name, f"it has {size} bytes, more than {MAX_BYTES}")
        header = self._shards.read(0, offset, _LOCAL_HEADER)
        if header[:4] != _MAGIC or header[6] & 1:
            raise self._error(
                name, "it is encrypted" if header[:4] == _MAGIC else "its header is not where the directory says"
            )
        begin = (
            offset + _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        )
        content = self._shards.read(0, begin, packed)
        if method == zipfile.ZIP_DEFLATED:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            except zlib.error as error:
                raise self._error(name, str(error)) from None
        if len(content) != size or zlib.crc32(content) != checksum:
            raise self._error(name, f"expected {size} bytes with checksum {checksum:08x}, got others")
        return content

    def _error(self, name: str, what: str) -> DamagedItem:
        return self._shards.damaged(0, name, f"member '{name}' cannot be read: {what}")


def _split(path: str, where: str | None) -> tuple[str, str]:
    """Returns (the path of the zip, that of the folder in it). Raises DataError if there is no file."""
    for candidate in (Path(path), *Path(path).parents):
        if is_regular(candidate):
            inside = os.path.relpath(path, candidate)
            return str(candidate), "" if inside == "." else inside
    raise DataError(f"{path}: no such zip file", where)
