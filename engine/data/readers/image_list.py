"""ImageData: Reads pictures named in a list, or in class folders, each with its label, several labels, or a mask."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from engine import proto
from engine.data.decode import COLOR, GRAY, LINEAR, NEAREST, AnyImage, as_picture, decode, decode_mask, parse_datum
from engine.data.image_tree import Tree, open_tree, read_list
from engine.data.index import Index, open_index
from engine.data.limits import MAX_BYTES, check_size
from engine.data.members import set_labels
from engine.data.pair import Partner, check_pair
from engine.data.paired_reader import PairedReader
from engine.data.reader import Request, Shape, random_first
from engine.data.registry import Stored, open_source, reader, recognised
from engine.data.transform import Transformer, crop_shape, forced_color
from engine.errors import ConfigError, DataError
from engine.files import is_regular, read_bytes


@dataclass(frozen=True)
class Listing:
    """What all layers that read lists have in their parameters, by one set of names.

    root: is put in front of the paths in the list. size: (width, height) that pictures are resized to; zeros if they
    are not resized. bare: whether a line may be a path alone, without a label or a mask."""

    source: str
    root: str
    size: tuple[int, int] = (0, 0)
    is_color: bool = True
    shuffle: bool = False
    rand_skip: int = 0
    bare: bool = False


class ListedReader(PairedReader):
    """The base of the readers of a list, whose paths lie below a root: a folder, a prefix of names, or an archive.

    In place of a list, the source may be a folder or an archive of class folders: whatever open_source() opens."""

    handled: tuple[str, ...] = ("mix_param",)  # fields of transform_param that the reader itself applies

    def open_list(self, listing: Listing, transform: proto.TransformationParameter, request: Request) -> None:
        """Opens the list, and sets all attributes but `shapes`. Raises ConfigError, DataError."""
        if not listing.source:
            raise ConfigError(f"{self.field}.source is missing", request.where)
        self._transformer = Transformer(transform, request.phase, request.where, self.handled)
        self.name = request.path(listing.source)
        self._place = f"{request.where}: {self.name}" if request.where else self.name
        self._root, self._size = listing.root, listing.size
        self._color = _color(listing, transform, request.where)
        self._tree = _archive(listing.root)
        self._folders = None
        if recognised(self.name) and not _is_member(self.name):
            self._folders = open_source(self.name, request.where, listing.shuffle)
        if self._folders is not None:
            self.size, self.classes = len(self._folders), self._folders.classes
        else:
            self._open_lines(listing.bare, request.where)
        self.shuffle = listing.shuffle
        self.owners = request.owners(listing.source)
        self.first = random_first(listing.rand_skip, request)

    def _open_lines(self, bare: bool, where: str | None) -> None:
        def build() -> Index:
            entries = read_list(self.name, where, bare)
            index = Index({"labels": np.array([each.labels for each in entries], np.float64)})
            index.add_names("names", (os.fsencode(each.name) for each in entries))
            index.add_names("masks", (os.fsencode(each.mask) for each in entries))
            return index

        # A list within an archive has no size and time of its own to tell whether an index fits it: it is read anew.
        index = open_index(self.name, f"LIST {bare}", [self.name], build, where) if is_regular(self.name) else build()
        self._names, self._masked = index.names("names"), index.names("masks")
        self._labels = index.columns["labels"]
        self.size = len(self._names)

    def fetch(self, index: int) -> tuple[str, Stored]:
        if self._folders is not None:
            return self._folders.item(index)
        name, mask = os.fsdecode(self._names[index]), os.fsdecode(self._masked[index])
        datum = proto.Datum(encoded=True, data=self._read(name))
        if labels := self._labels[index].tolist():
            set_labels(datum, labels)
        if mask:
            datum.mask = self._read(mask)
        return name, datum

    def _read(self, name: str) -> bytes:
        if self._tree is not None:
            return self._tree.read(name)
        # The two are joined as text, as in Caffe, so that "pictures/set1_" can be a prefix, too.
        path, inside = self._root + name, os.path.join(self._root, name)
        try:
            return read_bytes(path, DataError, self._place, MAX_BYTES)
        except DataError:
            if os.path.lexists(path) or not is_regular(inside):
                raise
            raise DataError(
                f"{path}: cannot be read: there is none, but {inside}; the root folder is put in front as it is: end "
                "it with a '/'",
                self._place,
            ) from None

    def decode(self, fetched: Stored) -> tuple[AnyImage, Partner]:
        datum = parse_datum(fetched) if isinstance(fetched, bytes) else fetched
        image = decode(datum, self._color)
        mask = decode_mask(datum.mask) if datum.mask else None
        if mask is not None:
            check_pair(mask, image)
        if self._size[0]:
            image = as_picture(image).resized(self._size, LINEAR)
            mask = as_picture(mask).resized(self._size, NEAREST).pixels() if mask is not None else None
        if datum.labels:
            return image, Partner(tuple(datum.labels), mask)
        return image, Partner((datum.label,) if datum.HasField("label") else (), mask)

    @classmethod
    def listed_shape(
        cls, listing: Listing, transform: proto.TransformationParameter, where: str | None
    ) -> tuple[int, int, int]:
        """Returns the shape (c, h, w) of a picture by the layer's parameters alone. Raises ConfigError if they do not
        tell."""
        crop_h, crop_w = crop_shape(transform, where)
        height, width = crop_h or listing.size[1], crop_w or listing.size[0]
        if not height:
            raise ConfigError(
                f"the size of the images is unknown: source {listing.source} is not there, and there is neither "
                "new_height nor crop_size",
                where,
            )
        return len(_color(listing, transform, where)), height, width


@reader("ImageData")
class ImageListReader(ListedReader):
    """Gives the arrays of PairedReader."""

    field = "image_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        listing = listing_of(message.image_data_param, self.field, request.where)
        self.open_list(listing, message.transform_param, request)
        self.look(message, request)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        listing = listing_of(message.image_data_param, cls.field, where)
        return cls.listed_shape(listing, message.transform_param, where), ()


def listing_of(
    param: proto.ImageDataParameter | proto.DenseImageDataParameter, field: str, where: str | None, bare: bool = False
) -> Listing:
    """Returns what the parameters of a layer say. field: their name in the layer, for messages.

    Raises ConfigError for sizes that cannot be used, and for fields that are not supported."""
    if bool(param.new_height) != bool(param.new_width):
        raise ConfigError(
            f"new_height and new_width need each other; got {param.new_height} and {param.new_width}", where
        )
    if param.new_height:
        check_size(param.new_height, param.new_width, "new_height and new_width", where)
    for name in ("min_height", "min_width"):
        if getattr(param, name, 0):
            raise ConfigError(f"{field}.{name} is not supported; use transform_param.resize_param", where)
    size = (param.new_width, param.new_height)
    return Listing(param.source, param.root_folder, size, param.is_color, param.shuffle, param.rand_skip, bare)


def _color(listing: Listing, transform: proto.TransformationParameter, where: str | None) -> str:
    return forced_color(transform, where) or (COLOR if listing.is_color else GRAY)


def _is_member(path: str) -> bool:
    """Tells whether a path is that of a file in an archive: it is a list then, and no folder of pictures."""
    tree = None if is_regular(path) else _archive(os.path.dirname(path))
    return tree is not None and tree.has(os.path.basename(path))


def _archive(root: str) -> Tree | None:
    """Opens the archive that a root is, or is a folder in. Returns None if the root is a folder on the disk or a prefix
    of names."""
    parts = [root.rstrip("/")]
    while parts[-1] and not os.path.isdir(parts[-1]):
        if is_regular(parts[-1]):
            return open_tree(root.rstrip("/"))
        parts.append(os.path.dirname(parts[-1]))
    return None
