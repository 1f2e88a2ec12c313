"""Image files into an LMDB of Datums, as Caffe's tool of the same name writes them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from engine import proto
from engine.data.decode import COLOR, GRAY, UndecodableImage, decode_bytes, resized
from engine.data.image_tree import FolderTree, ZipTree, class_folders, open_tree, read_list
from engine.data.limits import check_size, check_within
from engine.data.lmdb_writer import check_new, new_lmdb
from engine.data.ordered_map import ordered_map
from engine.data.prefetch import data_threads
from engine.errors import DataError

_TELL_EVERY = 1000
_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "bmp": "BMP"}


@dataclass
class Conversion:
    """What convert_imageset did."""

    images: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it could not be decoded


@dataclass(frozen=True)
class _Encoder:
    """How the images are to be stored."""

    tree: FolderTree | ZipTree
    root: str
    color: str
    height: int
    width: int
    encoded: bool
    encode_type: str

    def __call__(self, entry: tuple[str, int]) -> tuple[str, bytes | DataError]:
        """(name, serialised Datum or the reason why there is none). Raises DataError for a file that cannot be read."""
        name, label = entry
        data = self.tree.read(name)
        try:
            datum = self._datum(name, data)
        except UndecodableImage as error:
            return name, DataError(f"{self.root}/{name}: {error}")
        datum.label = label
        return name, datum.SerializeToString()

    def _datum(self, name: str, data: bytes) -> proto.Datum:
        original = decode_bytes(data)
        image = original.convert(self.color)
        if self.height:
            image = resized(image, (self.width, self.height), Image.Resampling.BILINEAR)
        if self.encoded:
            return proto.Datum(encoded=True, data=self._encode(name, data, original, image))
        planes = b"".join(band.tobytes() for band in reversed(image.split()))  # R, G, B become B, G, R
        return proto.Datum(channels=len(image.mode), height=image.height, width=image.width, data=planes)

    def _encode(self, name: str, data: bytes, original: Image.Image, image: Image.Image) -> bytes:
        """The file's own bytes where they are what is asked for: nothing is lost by a second compression."""
        kind = self.encode_type or Path(name).suffix[1:].lower()
        if kind not in _FORMATS:
            kind = "jpg"
        format = _FORMATS[kind]
        if image.size == original.size and original.mode == self.color and original.format == format:
            return data
        encoded = io.BytesIO()
        image.save(encoded, format, **({"quality": 95} if format == "JPEG" else {}))
        return encoded.getvalue()


def convert_imageset(
    root: str,
    list_file: str | None,
    db: str,
    *,
    shuffle: bool = False,
    seed: int = 1,
    resize_height: int = 0,
    resize_width: int = 0,
    gray: bool = False,
    encoded: bool = False,
    encode_type: str = "",
    skip_bad_images: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Writes the images of root to a new LMDB, as Datums of BGR (or grey) bytes, channel by channel.

    root: a folder, a .zip, or a folder in one (data.zip/train). list_file: lines "relative/path label", or None for
    the class folders of root in alphabetical order. Keys are "%08d_path", counted after the shuffle.
    resize_height, resize_width: 0 and 0 keep each image's own size. encoded: store image files instead of bytes, of
    the kind encode_type ("jpg", "png", "bmp"), "" for each file's own. progress(done, total) is called now and then.
    The LMDB appears under its name only when it is complete. Raises DataError: db exists, a file is missing or cannot
    be decoded (unless skip_bad_images), the disk is full. Raises ConfigError for sizes that no picture can have.
    """
    check_new(db)
    if encode_type and encode_type not in _FORMATS:
        raise DataError(f"encode_type {encode_type!r} is not known; known: {', '.join(_FORMATS)}")
    if bool(resize_height) != bool(resize_width):
        raise DataError(f"resize_height and resize_width need each other; got {resize_height} and {resize_width}")
    if resize_height:
        check_size(resize_height, resize_width, "resize_height and resize_width", None)
    check_within(0, seed, 2**32 - 1, "seed", None)
    tree = open_tree(root)
    entries = read_list(list_file) if list_file else class_folders(tree, root)
    if shuffle:
        entries = [entries[i] for i in np.random.RandomState(seed).permutation(len(entries))]
    color = GRAY if gray else COLOR
    encode = _Encoder(tree, root, color, resize_height, resize_width, encoded or bool(encode_type), encode_type)
    conversion = Conversion()
    items = _items(ordered_map(encode, entries, threads or data_threads()), conversion, skip_bad_images)
    with contextlib.closing(items), new_lmdb(db) as put:
        for done, (key, value) in enumerate(items, start=1):
            put(key, value)
            if progress and (done % _TELL_EVERY == 0 or done == len(entries)):
                progress(done, len(entries))
    return conversion


def _items(
    encoded: Iterator[tuple[str, bytes | DataError]], conversion: Conversion, skip_bad_images: bool
) -> Generator[tuple[bytes, bytes], None, None]:
    """(key, value) for each image; counts them."""
    for number, (name, value) in enumerate(encoded):
        if isinstance(value, DataError):
            if not skip_bad_images:
                raise value
            conversion.skipped[name] = str(value)
            continue
        conversion.images += 1
        yield f"{number:08d}_{name}".encode(errors="surrogateescape"), value  # also names that are not UTF-8
