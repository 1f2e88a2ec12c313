"""Writes new tars and TFRecords of pictures, in one file or several, which appear when all of them are complete."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

from engine import proto
from engine.data.appearing import Begin
from engine.data.example import record, serialise
from engine.data.members import LABEL, MASKS
from engine.errors import DataError
from engine.files import reason

_SIGNATURES = {b"\xff\xd8": "jpg", b"\x89P": "png", b"BM": "bmp"}


def shard_names(db: str, shards: int) -> list[str]:
    """Returns the names of the files of `db`: x.tar alone for 0 shards, else x-000000.tar and so on."""
    stem, extension = os.path.splitext(db)
    return [f"{stem}-{number:06d}{extension}" for number in range(shards)] if shards else [db]


def sharded(db: str, shards: int) -> str:
    """Returns the source with which a net reads all of shard_names(): x-{000000..000007}.tar."""
    stem, extension = os.path.splitext(db)
    return f"{stem}-{{000000..{shards - 1:06d}}}{extension}" if shards else db


def unsharded(name: str) -> str:
    """Returns x.tar for x-000000.tar, and any other name, such as x-202406.tar, as it is."""
    return re.sub(r"-0\d{5}(?=\.\w+$)", "", name)


def _tar(file: BinaryIO, number: int, name: str, datum: proto.Datum, classes: Sequence[str]) -> None:
    """Writes a picture as WebDataset does: 00000012.jpg, 00000012.cls, 00000012.mask.png."""
    members = {image_kind(datum.data) or "jpg": datum.data}
    if datum.labels or datum.HasField("label"):
        text = " ".join(f"{value:.9g}" for value in datum.labels) or str(datum.label)
        members[LABEL] = text.encode()
    if datum.mask:
        members[MASKS[0]] = datum.mask
    for extension, content in members.items():
        info = tarfile.TarInfo(f"{number:08d}.{extension}")
        info.size = len(content)
        file.write(info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE))


def _tfrecord(file: BinaryIO, number: int, name: str, datum: proto.Datum, classes: Sequence[str]) -> None:
    """Writes a picture with the features that TensorFlow's own tools write."""
    features: dict[str, bytes | Sequence[int] | Sequence[float]] = {
        "image/encoded": datum.data,
        "image/format": image_kind(datum.data).replace("jpg", "jpeg").encode(),
        "image/filename": name.encode(errors="surrogateescape"),
    }
    if datum.labels:
        features["image/class/label"] = list(datum.labels)
    elif datum.HasField("label"):
        features["image/class/label"] = [datum.label]
        if 0 <= datum.label < len(classes):
            features["image/class/text"] = classes[datum.label].encode(errors="surrogateescape")
    if datum.mask:
        features["image/segmentation/class/encoded"] = datum.mask
    file.write(record(serialise(features)))


_WRITERS = {
    "tar": (_tar, bytes(2 * tarfile.BLOCKSIZE)),
    "tfrecord": (_tfrecord, b""),
}  # the function, and the bytes that end a file


def image_kind(content: bytes) -> str:
    """Returns "jpg", "png" or "bmp", by an image file's first bytes; "" for other formats."""
    return _SIGNATURES.get(content[:2], "")


@contextlib.contextmanager
def new_shards(
    kind: str, names: Sequence[str], count: int, classes: Sequence[str], extra: Mapping[str, str], begin: Begin
) -> Iterator[Callable[[int, str, proto.Datum], None]]:
    """Yields a function that writes a picture: it takes its number, its name and the Datum of its image file.

    Args:
        kind: "tar" or "tfrecord".
        names: of the files.
        count: the number of pictures, at most. They are divided evenly among the files, in their order.
        classes: the classes' names by label.
        extra: other files that appear with these, as texts by their names.
        begin: the function of appearing(), with which all of them appear.

    Raises DataError if they cannot be written.
    """
    write, end = _WRITERS[kind]
    temporary = {name: begin(name) for name in (*names, *extra)}
    written, file, at = 0, io.BytesIO(), -1

    def put(number: int, name: str, datum: proto.Datum) -> None:
        nonlocal written, file, at
        while at < min(len(names) - 1, written * len(names) // max(1, count)):
            turn()
        write(file, number, name, datum, classes)
        written += 1

    def turn() -> None:
        nonlocal file, at
        close()
        at += 1
        file = open(temporary[names[at]], "xb")

    def close() -> None:
        if at >= 0 and not file.closed:
            file.write(end)
            file.flush()
            os.fsync(file.fileno())
            file.close()

    try:
        os.makedirs(os.path.dirname(names[0]) or ".", exist_ok=True)
        yield put
        while at < len(names) - 1:
            turn()
        close()
        for name, text in extra.items():
            with open(temporary[name], "x", encoding="utf-8", errors="surrogateescape") as out:
                out.write(text)
    except OSError as error:
        raise DataError(f"cannot write {names[max(0, at)]}: {reason(error)}") from None
    finally:
        file.close()
