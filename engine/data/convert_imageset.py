"""Writes the pictures of any source to an LMDB of Datums, as Caffe's tool of the same name does, a tar or TFRecords."""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from PIL import Image

from engine import proto
from engine.data.appearing import Begin, appearing
from engine.data.decode import (
    COLOR,
    GRAY,
    ImageError,
    as_pillow,
    decode,
    decode_bytes,
    decode_mask,
    parse_datum,
    resized,
)
from engine.data.image_tree import open_tree, read_list
from engine.data.labels import LABELS, format_of, labels_file
from engine.data.limits import check_size, check_within
from engine.data.lmdb_writer import check_new, new_lmdb
from engine.data.members import set_labels
from engine.data.ordered_map import ordered_map
from engine.data.pair import check_pair
from engine.data.registry import open_source
from engine.data.shard_writer import image_kind, new_shards, shard_names, sharded
from engine.errors import ConfigError, DamagedItem, DataError
from engine.host.cores import cores_at_once

_TELL_EVERY = 16
_KINDS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "bmp": "BMP"}
_Stored = tuple[proto.Datum, tuple[int, int, int]]  # a Datum, and (channels, height, width) of the picture in it
_Encoded = tuple[int, str, _Stored | DataError]  # index, name, what is stored


@dataclass(frozen=True)
class Output:
    """What pictures become. Sizes are in pixels; 0 keeps that of the picture.

    height, width: of all pictures.
    shorter_side: the length of the shorter side; the aspect ratio is kept.
    max_side: the length to which a longer side is shrunk.
    encoded: whether to store image files, not pixels.
    encode_type: the kind of these, "jpg", "png" or "bmp"; "" for each file's own.
    quality: of JPEGs.
    """

    height: int = 0
    width: int = 0
    shorter_side: int = 0
    max_side: int = 0
    gray: bool = False
    encoded: bool = False
    encode_type: str = ""
    quality: int = 95

    def check(self) -> None:
        """Raises DataError, ConfigError."""
        if self.encode_type and self.encode_type not in _KINDS:
            raise DataError(f"encode_type {self.encode_type!r} is not known; known: {', '.join(_KINDS)}")
        if bool(self.height) != bool(self.width):
            raise DataError(f"resize_height and resize_width need each other; got {self.height} and {self.width}")
        if self.height:
            check_size(self.height, self.width, "resize_height and resize_width", None)
        for name in ("shorter_side", "max_side"):
            if side := getattr(self, name):
                check_size(side, 1, name, None)
                if self.height:
                    raise ConfigError(f"{name} and resize_height exclude each other")
        if self.shorter_side and self.max_side and self.max_side < self.shorter_side:
            raise ConfigError(f"max_side {self.max_side} is less than shorter_side {self.shorter_side}")
        check_within(1, self.quality, 100, "quality", None)

    def size_of(self, image: Image.Image) -> tuple[int, int]:
        """Returns (width, height) of what an image becomes."""
        if self.height:
            return self.width, self.height
        width, height = image.size
        if self.shorter_side:
            scale = self.shorter_side / min(width, height)
            width, height = max(self.shorter_side, round(width * scale)), max(self.shorter_side, round(height * scale))
        if self.max_side and max(width, height) > self.max_side:
            scale = self.max_side / max(width, height)
            width, height = max(1, round(width * scale)), max(1, round(height * scale))
        return width, height

    def picture(self, original: Image.Image) -> Image.Image:
        """Returns what an image becomes. Raises UndecodableImage."""
        color = GRAY if self.gray else COLOR
        image = original.convert(color) if original.mode != color else original
        size = self.size_of(image)
        return image if size == image.size else resized(image, size, Image.Resampling.BILINEAR)

    def datum(self, datum: proto.Datum) -> _Stored:
        """Returns the Datum to store in place of one, with its labels, and (channels, height, width) of its picture.
        Raises ImageError."""
        original = decode_bytes(datum.data) if datum.encoded else decode(datum)
        if isinstance(original, np.ndarray) and not (self.encoded or self.height or self.shorter_side or self.max_side):
            if original.shape[2] == len(GRAY if self.gray else COLOR) or original.dtype != np.uint8:
                return datum, (datum.channels, datum.height, datum.width)  # its numbers stay as they are
        original = as_pillow(original)
        image = self.picture(original)
        result, shape = proto.Datum(), (len(image.mode), image.height, image.width)
        if self.encoded:
            result.encoded, result.data = True, self._encode(datum, original, image)
        else:
            result.channels, result.height, result.width = shape
            result.data = b"".join(band.tobytes() for band in reversed(image.split()))  # R, G, B become B, G, R
        if datum.mask:
            mask = decode_mask(datum.mask)
            check_pair(mask, original)
            if mask.size != image.size:
                mask = resized(mask, image.size, Image.Resampling.NEAREST)
            encoded = io.BytesIO()
            mask.save(encoded, "PNG")
            result.mask = encoded.getvalue()
        if datum.labels:
            result.labels.extend(datum.labels)
        elif datum.HasField("label") or not datum.mask:
            result.label = datum.label
        return result, shape

    def _encode(self, datum: proto.Datum, original: Image.Image, image: Image.Image) -> bytes:
        """Returns the bytes of the image file: the file's own, if they are what is asked for, so that nothing is lost
        by a second compression."""
        own = image_kind(datum.data) if datum.encoded else ""
        kind = self.encode_type or own or "jpg"
        if own and _KINDS[own] == _KINDS[kind] and image.size == original.size and image.mode == original.mode:
            return datum.data
        return self.file(image, kind)

    def file(self, image: Image.Image, kind: str) -> bytes:
        """Returns an image as the bytes of a file. kind: as encode_type."""
        encoded = io.BytesIO()
        image.save(encoded, _KINDS[kind], **({"quality": self.quality} if _KINDS[kind] == "JPEG" else {}))
        return encoded.getvalue()


@dataclass
class Conversion:
    """What convert_imageset did.

    outputs: the number of pictures by output, named as a net names its source. labels: by output, the number of
    pictures by label. classes: the classes' names by label, if known."""

    images: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # names of pictures, and why they cannot be decoded
    outputs: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[int]] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)

    def table(self) -> list[str]:
        """Returns a line for each class: its label, its name, and how many pictures each output has of it."""
        labels = sorted({label for counts in self.labels.values() for label in counts})
        lines = []
        for label in labels:
            name = f" {self.classes[label]}" if 0 <= label < len(self.classes) else ""
            counts = " + ".join(str(counts[label]) for counts in self.labels.values())
            lines.append(f"class {label}{name}: {counts} images")
        return lines


def val_name(db: str) -> str:
    """Returns the name of the output that holds what --val_fraction sets aside."""
    stem, extension = os.path.splitext(db) if format_of(db) != "lmdb" else (db.rstrip("/"), "")
    return f"{stem}_val{extension}"


def convert_imageset(
    root: str,
    list_file: str | None,
    db: str,
    output: Output | None = None,
    *,
    shuffle: bool = False,
    seed: int = 1,
    shards: int = 0,
    val_fraction: float = 0.0,
    check_size: bool = False,
    skip_bad_images: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Writes the pictures of root to a new LMDB or, if db has such an extension, to a tar or TFRecord file.

    Args:
        root: any source (engine/data/sources); with a list a folder, a zip, a tar, or a folder in one.
        list_file: lines as read_list() reads them.
        shards: the number of files of a tar or TFRecord, db-000000 and so on; 0: one, of the name db.
        val_fraction: the fraction of the pictures, chosen by the seed, to write to val_name(db) instead.
        check_size: whether all that is stored has to be of one size, pixels and image files alike.
        progress: is called with (done, total) now and then.

    Keys are "%08d_path", counted after the shuffle. What is written appears under its name only when it is complete.
    Raises DataError if db exists, a file is missing or cannot be decoded (unless skip_bad_images), pictures differ in
    size (with check_size), or the disk is full.
    Raises ConfigError for sizes that no picture can have, and for other values out of range.
    """
    output = output or Output()
    names = _new_names(db, output, seed, shards, val_fraction)
    if format_of(db) != "lmdb" or output.encode_type:
        output = replace(output, encoded=True)
    pictures = _Listed(root, list_file) if list_file else _Source(root)
    order = np.random.RandomState(seed).permutation(len(pictures)) if shuffle else np.arange(len(pictures))
    aside = _set_aside(len(pictures), val_fraction, seed)
    counts = [int(len(order) - aside.sum()), int(aside.sum())]
    for name, count in zip(names, counts, strict=False):
        if not count:
            raise DataError(f"val_fraction {val_fraction:g} of {len(order)} pictures leaves none for {name}")
    conversion = Conversion(classes=pictures.classes)
    encoded = ordered_map(partial(_encode, pictures, output, root), order.tolist(), cores_at_once())
    items = _good(encoded, conversion, skip_bad_images)
    with contextlib.closing(items), appearing() as begin, contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(_writer(name, shards, count, conversion.classes, begin))
            for name, count in zip(names, counts, strict=False)
        ]
        sources = [sharded(name, shards) for name in names]
        conversion.outputs, conversion.labels = Counter(sources), {source: Counter() for source in sources}
        conversion.outputs.subtract(sources)
        shapes: set[tuple[int, ...]] = set()
        for number, index, name, (datum, shape) in items:
            if check_size:
                shapes.add(shape)
                _check_alike(shapes, f"{root}/{name}")
            to = int(aside[index])
            writers[to](number, name, datum)
            conversion.outputs[sources[to]] += 1
            if datum.HasField("label"):
                conversion.labels[sources[to]][datum.label] += 1
            if progress and (number + 1) % _TELL_EVERY == 0:
                progress(number + 1, len(order))
        if progress:
            progress(len(order), len(order))
        _check_decoded(conversion, len(order), list_file or root)
    return conversion


def _new_names(db: str, output: Output, seed: int, shards: int, val_fraction: float) -> list[str]:
    """Returns the names of the outputs. Raises DataError if one exists, ConfigError for values out of range."""
    output.check()
    check_within(0, seed, 2**32 - 1, "seed", None)
    check_within(0, val_fraction, 0.99, "val_fraction", None)
    if shards and format_of(db) == "lmdb":
        raise ConfigError("shards are of a tar or TFRecord: name DB x.tar or x.tfrecord")
    check_within(0, shards, 100_000, "shards", None)
    names = [db, *([val_name(db)] if val_fraction else [])]
    for name in names:
        for file in [*shard_names(name, shards), labels_file(name)]:
            check_new(file)
    return names


def _set_aside(total: int, fraction: float, seed: int) -> np.ndarray:
    """Returns bools (total,): whether each picture is of the fraction that the seed chooses."""
    aside = np.zeros(total, bool)
    aside[np.random.RandomState([seed, 1]).permutation(total)[: round(fraction * total)]] = True
    return aside


def _check_alike(shapes: set[tuple[int, ...]], name: str) -> None:
    """Raises DataError if the picture of this name differs in shape from those before it. shapes: of all of them."""
    if len(shapes) > 1:
        raise DataError(
            f"{name}: differs in size from those before it: {sorted(shapes)}; resize_height and resize_width make them "
            "alike"
        )


def _check_decoded(conversion: Conversion, total: int, source: str) -> None:
    """Raises DataError if no picture of a source, or of one of the outputs, could be decoded."""
    if not conversion.images:
        raise DataError(f"none of its {total} pictures can be decoded", source)
    for name, count in conversion.outputs.items():
        if not count:
            raise DataError(f"none of the pictures for {name} can be decoded", source)


class _Source:
    """The pictures of any source."""

    def __init__(self, root: str):
        self._source = open_source(root)
        self.classes = self._source.classes

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> tuple[str, proto.Datum]:
        key, stored = self._source.item(index)
        try:
            return key, parse_datum(stored) if isinstance(stored, bytes) else stored
        except ImageError as error:
            raise DamagedItem(f"key '{key}': {error}", key) from None


class _Listed:
    """The pictures that a list names."""

    classes: list[str] = []

    def __init__(self, root: str, list_file: str):
        self._tree, self._entries = open_tree(root), read_list(list_file)

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, index: int) -> tuple[str, proto.Datum]:
        entry = self._entries[index]
        datum = proto.Datum(encoded=True, data=self._tree.read(entry.name))
        if entry.labels:
            set_labels(datum, entry.labels)
        if entry.mask:
            datum.mask = self._tree.read(entry.mask)
        return entry.name, datum


def _encode(pictures: _Source | _Listed, output: Output, root: str, index: int) -> _Encoded:
    name = ""
    try:
        name, datum = pictures.read(index)
        return index, name, output.datum(datum)
    except DamagedItem as error:
        return index, error.key, error
    except ImageError as error:
        return index, name, DataError(f"{root}/{name}: {error}")


def _good(
    encoded: Iterator[_Encoded], conversion: Conversion, skip_bad_images: bool
) -> Generator[tuple[int, int, str, _Stored], None, None]:
    """Yields (number, index, name, what is stored) of each image that could be decoded, and counts them. Raises the
    error of another one, unless skip_bad_images."""
    for number, (index, name, stored) in enumerate(encoded):
        if isinstance(stored, DataError):
            if not skip_bad_images:
                raise stored
            conversion.skipped.append((name, str(stored)))
            continue
        conversion.images += 1
        yield number, index, name, stored


@contextlib.contextmanager
def _writer(
    db: str, shards: int, count: int, classes: list[str], begin: Begin
) -> Iterator[Callable[[int, str, proto.Datum], None]]:
    """Yields a function that writes a picture: it takes its number, name and Datum. count: the number of pictures, at
    most. begin: the function of appearing()."""
    names = "".join(f"{name}\n" for name in classes)
    if format_of(db) == "lmdb":
        with new_lmdb(db, {LABELS: names} if names else {}, begin) as put:
            # surrogateescape: names need not be UTF-8
            yield lambda number, name, datum: put(
                f"{number:08d}_{name}".encode(errors="surrogateescape"), datum.SerializeToString()
            )
    else:
        extra = {labels_file(db): names} if names else {}
        with new_shards(format_of(db), shard_names(db, shards), count, classes, extra, begin) as write:
            yield write
