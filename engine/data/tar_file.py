"""Finds the members of tar files without unpacking them: reads POSIX ustar and pax headers and GNU's long names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from engine.config.numbers import whole
from engine.data.decode import FORMATS
from engine.data.members import Member
from engine.data.shards import Shards
from engine.errors import DataError

_BLOCK = 512
_MOST_HEADER = 1 << 20  # bytes of a long name or of pax records
_REGULAR, _LONG_NAME, _LONG_LINK, _PAX, _PAX_ALL = (b"0", b"\0", b"7"), b"L", b"K", b"x", b"g"
_EXTENDED = (_LONG_NAME, _LONG_LINK, _PAX, _PAX_ALL)
_SPARSE, _HARD_LINK, _SYMBOLIC_LINK = b"S", b"1", b"2"
_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}


def list_tar(shards: Shards, shard: int, begin: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yields the regular files of a tar, each with its place (shard, offset, size); a hard link has that of its file.

    begin, end: the bytes of a tar within the tar; by default the whole file. Raises DataError if the tar is damaged or
    ends too early, or has a symbolic link in place of a picture."""
    end = shards.size(shard) if end is None else end
    at, told = begin, _Told()
    places: dict[str, tuple[int, ...]] = {}
    if end - begin < _BLOCK:
        raise shards.error(shard, f"expected a tar, got {end - begin} bytes")
    while at + _BLOCK <= end:
        header = shards.read(shard, at, _BLOCK)
        if not any(header):  # a block of zeros ends a tar; the second one does not matter
            return
        length = _check(shards, shard, at, header, begin)
        kind, content = header[156:157], at + _BLOCK
        if told.size is not None and kind not in _EXTENDED:
            length = told.size
        if content + length > end:
            raise shards.error(
                shard,
                f"it ends at byte {end}, its member at byte {at} at {content + length}: it is truncated; copy it again",
            )
        if kind in _EXTENDED:
            told.take_in(shards, shard, at, kind, shards.read(shard, content, length, _MOST_HEADER))
        elif kind == _SPARSE:
            raise _sparse(shards, shard, at)
        else:
            own = _clean(told.name if told.name is not None else _name(header))
            if kind in _REGULAR:
                places[own] = shard, content, length
                yield Member(own, places[own])
            elif kind in (_HARD_LINK, _SYMBOLIC_LINK):
                target = _clean(told.link if told.link is not None else header[157:257].partition(b"\0")[0])
                if place := _linked(shards, shard, kind, own, target, places):
                    places[own] = place
                    yield Member(own, place)
            told = _Told()
        at = content + -(-length // _BLOCK) * _BLOCK
    if at > end:  # the last member's padding is not there
        raise shards.error(shard, "its last member is cut off; copy it again")
    raise shards.error(shard, "it ends without the zeros that end a tar: it is truncated; copy it again")


@dataclass
class _Told:
    """What extended headers say of the member behind them. It replaces what the member's own header says."""

    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None

    def take_in(self, shards: Shards, shard: int, at: int, kind: bytes, text: bytes) -> None:
        """Reads an extended header. at: its offset. text: its content. Raises DataError."""
        if kind == _LONG_NAME:
            self.name = text.rstrip(b"\0")
        elif kind == _LONG_LINK:
            self.link = text.rstrip(b"\0")
        elif kind == _PAX:
            records = _pax(shards, shard, at, text)
            if any(key.startswith(b"GNU.sparse") for key in records):
                raise _sparse(shards, shard, at)
            self.name, self.link = records.get(b"path", self.name), records.get(b"linkpath", self.link)
            if b"size" in records:
                self.size = whole(records[b"size"].decode(errors="replace"), 0, 2**63 - 1)
                if self.size is None:
                    raise shards.error(shard, f"it is a damaged tar: the pax header at byte {at} has no size")


def _sparse(shards: Shards, shard: int, at: int) -> DataError:
    return shards.error(shard, f"its member at byte {at} is a sparse file; make the tar without --sparse")


def _linked(
    shards: Shards, shard: int, kind: bytes, name: str, target: str, places: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Returns the place of the file that a link leads to; None for a link that is no picture. Raises DataError for a
    picture whose file is not found."""
    if kind == _HARD_LINK and target in places:
        return places[target]
    if os.path.splitext(name)[1].lower() not in FORMATS:
        return None
    what, advice = ("symbolic", "--dereference") if kind == _SYMBOLIC_LINK else ("hard", "--hard-dereference")
    why = "" if kind == _SYMBOLIC_LINK else ", which does not lie before it"
    raise shards.error(shard, f"its member '{name}' is a {what} link to '{target}'{why}; make the tar with {advice}")


def _check(shards: Shards, shard: int, at: int, header: bytes, begin: int) -> int:
    """Checks a header's checksum and returns the size of its member. Raises DataError."""
    told = _octal(header[148:156])
    if told != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        if at == begin and (packed := _PACKED.get(header[:2])):
            raise shards.error(shard, f"it is packed by {packed}, so that no member can be read alone; unpack it first")
        what = "no tar" if at == begin else "a damaged tar"
        raise shards.error(shard, f"it is {what}: the header at byte {at} has a wrong checksum")
    size = _octal(header[124:136])
    if size is None:
        raise shards.error(shard, f"it is a damaged tar: the header at byte {at} has no size")
    return size


def _octal(field: bytes) -> int | None:
    """Returns the number in a header's field, None if it is damaged. It is in octal digits or, if the first bit is set,
    in bytes, the highest first."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits or b"0", 8) if not digits.startswith((b"-", b"+")) and b"_" not in digits else None
    except ValueError:
        return None


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        return prefix + b"/" + name
    return name


def _clean(name: bytes) -> str:
    text = name.decode(errors="surrogateescape")
    while text.startswith("./"):
        text = text[2:].lstrip("/")
    return text


def _pax(shards: Shards, shard: int, at: int, text: bytes) -> dict[bytes, bytes]:
    """Returns the records of a pax header, each `length key=value` and a newline. Raises DataError."""
    records, begin = {}, 0
    while begin < len(text):
        digits, _, _ = text[begin : begin + 8].partition(b" ")
        end = begin + int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = text[begin + len(digits) + 1 : end - 1].partition(b"=")
        if not begin < end <= len(text) or text[end - 1 : end] != b"\n" or not equals:
            raise shards.error(shard, f"it is a damaged tar: the pax header at byte {at} is not one")
        records[key] = value
        begin = end
    return records


def list_shards(shards: Shards) -> Iterator[Member]:
    """Yields the members of all shards. In a tar of tars, as ILSVRC2012's is, these are the members of the inner tars,
    with the inner tar's name as their folder. Raises DataError."""
    for shard in range(len(shards.paths)):
        for member in list_tar(shards, shard):
            if not member.name.lower().endswith(".tar"):
                yield replace(member, identity=(shard, 0, member.name))
                continue
            _, offset, size = member.place
            folder = member.name[: -len(".tar")].rpartition("/")[2]
            try:
                for inner in list_tar(shards, shard, offset, offset + size):
                    name = f"{folder}/{inner.name.rpartition('/')[2]}"
                    yield Member(name, inner.place, (shard, offset, inner.name))
            except DataError as error:
                raise DataError(f"member '{member.name}': {error}") from None
