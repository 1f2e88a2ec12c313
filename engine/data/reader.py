"""The base of what reads a data layer's source: items by number, each a tuple of arrays, one for each top."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from PIL import Image

from engine import proto
from engine.config import expand_ranks
from engine.config.idle_fields import params_of_other_types
from engine.data.decode import COLOR, GRAY, AnyImage, ImageError, Picture, UndecodableImage, as_picture
from engine.data.keyed_random import KeyedRandom
from engine.data.transform import Transformer
from engine.errors import ConfigError, DamagedItem, DataError
from engine.files import reason

if TYPE_CHECKING:
    from engine.data.staging import CopyShare

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """Tells a Reader who reads: as open_data() takes it."""

    phase: int
    seed: int = 1
    where: str | None = None
    skip_bad_images: bool = False
    rank: int = 0
    ranks: int = 1
    share: CopyShare | None = None

    def path(self, source: str) -> str:
        """Returns the path of a source whose name may hold %# and %*."""
        return expand_ranks(source, self.rank, self.ranks)

    def owners(self, source: str) -> tuple[int, ...] | None:
        """Returns the Reader.owners of a source: this rank alone if the name of the source holds the rank."""
        return (self.rank,) if "%#" in source else None


class Sample(NamedTuple):  # made for each sample: a frozen dataclass takes thrice as long
    """An item that is asked for: the epoch, its index in the source, and its place in the rank's batch."""

    epoch: int
    index: int
    place: int


class Reader:
    """One data layer's source, open. A type of layer overrides the attributes and methods below; several threads call
    load().

    name: the source, as the layer names it.
    size: the number of items.
    shapes: of one item's arrays, one for each top.
    classes: the classes' names by label, empty if the source does not say.
    shuffle: whether each epoch has a new permutation.
    first: the item that the training begins with.
    owners: the ranks whose items the source holds; None: those of all.
    depth: the number of batches read ahead; 0: each is read when it is asked for.
    pairs: whether samples 2k and 2k + 1 of a batch go through join() when both are loaded.
    """

    field: ClassVar[str]  # the parameter of the layer that has batch_size, such as data_param

    has_masks: ClassVar[bool] = False  # whether the second array of each item is a mask

    name: str
    size: int
    shapes: tuple[Shape, ...]
    classes: Sequence[str] = ()
    shuffle = False
    first = 0
    owners: tuple[int, ...] | None = None
    depth = 4
    pairs = False

    def __init__(self, message: proto.LayerParameter, request: Request):
        """Opens what a LayerParameter names. Raises ConfigError, DataError."""
        # item -> (key, reason) of undecodable images met so far, with skip_bad_images
        self.skipped: dict[int, tuple[str, str]] = {}
        self.skipping = threading.Lock()  # held by whoever changes or reads `skipped`
        self.recoloured: set[int] = set()  # items that were converted to the first one's colours
        self._where = request.where
        self._skip_bad_images = request.skip_bad_images

    @property
    def ring(self) -> int:
        """The number of batch buffers: for those that are decoded ahead, and the one in use."""
        return self.depth + 1

    def ring_bytes(self, batch_size: int) -> int:
        """Returns the bytes of all batch buffers."""
        return 4 * self.ring * batch_size * sum(math.prod(shape) for shape in self.shapes)

    def identity(self) -> str:
        """Returns a few words that differ between ranks if they do not read the same source; "" if they need not.
        Raises DataError."""
        return f"{self.size} items"

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        """Fills out, float32 arrays of `shapes`, with an item; returns its key. Raises DataError."""
        raise NotImplementedError

    def skip(self, index: int, key: str, why: str) -> None:
        """Counts an undecodable image that is replaced by another one."""
        with self.skipping:
            self.skipped[index] = key, why

    def join(self, samples: Sequence[tuple[int, int]], arrays: Sequence[np.ndarray]) -> None:
        """Lets the two samples of a pair change each other, in place. samples: (epoch, index) of both. arrays: the rows
        (2, *shape) of both in the batch's arrays."""
        raise NotImplementedError

    @classmethod
    def batch_size(cls, message: proto.LayerParameter, where: str | None) -> int:
        """Returns the layer's batch_size. Raises ConfigError if it has none."""
        size = getattr(message, cls.field).batch_size
        if size <= 0:
            idle = params_of_other_types(message)
            unread = f"; {message.type} does not read {', '.join(idle)}" if idle else ""
            raise ConfigError(
                f"layer '{message.name}': expected a {cls.field}.batch_size above 0, got {size}{unread}", where
            )
        return size

    @classmethod
    def set_batch_size(cls, message: proto.LayerParameter, size: int) -> None:
        """Sets the layer's batch_size. Raises ConfigError if the type of layer fixes it."""
        getattr(message, cls.field).batch_size = size

    @classmethod
    def top_shapes(cls, shapes: Sequence[Shape], batch_size: int) -> list[Shape]:
        """Returns the shapes of the tops for a batch of items of `shapes`."""
        return [(batch_size, *shape) for shape in shapes]

    def tops(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns the values of the tops from the arrays (batch, *shape) that load() has filled."""
        return tuple(arrays)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        """Returns `shapes`, by the layer's parameters alone. Raises ConfigError if they do not tell."""
        raise ConfigError(
            f"layer '{message.name}' ({message.type}): the shape of its data is known to its source only, "
            "which is not here",
            where,
        )

    @classmethod
    def transform_of(cls, message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
        """Returns the layer's transform_param, with the mean and the scale wherever the layer has these; an empty one
        for types of layers without it. Raises ConfigError."""
        return proto.TransformationParameter()

    @classmethod
    def source_of(cls, message: proto.LayerParameter) -> str:
        """Returns the path that has to be there for the layer to be opened, "" if there is none."""
        return getattr(message, cls.field).source


class PictureReader(Reader):
    """Reads items that are decoded. A bad one is an error or, with skip_bad_images, replaced by the next good one.

    An item's arrays, unless a type of layer says otherwise, are the picture (c, h, w) as transform_param makes it, and
    its label ()."""

    _transformer: Transformer

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        self._seed = request.seed

    def fetch(self, index: int) -> tuple[str, Any]:
        """Returns (key, what decode() takes) of an item. Raises DataError."""
        raise NotImplementedError

    def decode(self, fetched: Any) -> tuple[AnyImage, Any]:
        """Returns (image, its label). Raises ImageError, UndecodableImage."""
        raise NotImplementedError

    @classmethod
    def transform_of(cls, message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
        return message.transform_param

    def identity(self) -> str:
        return f"{super().identity()}, keys '{self._key(0)}' to '{self._key(self.size - 1)}'"

    def _key(self, index: int) -> str:
        try:
            return self.fetch(index)[0]
        except DamagedItem as error:
            return error.key  # read() will raise the error, or skip the item

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        def use(image: AnyImage, label: int, random: KeyedRandom) -> None:
            self._transformer.apply(image, random, out[0])
            out[1][...] = label

        return self.read(sample.epoch, sample.index, use)

    def read(self, epoch: int, index: int, use: Callable[[Any, Any, KeyedRandom], None]) -> str:
        """Calls use(image, label, random) with an item, or with the next one that can be decoded if bad ones are
        skipped; returns the key of the item used. Raises DataError."""
        for _ in range(self.size):
            key = ""
            try:
                key, fetched = self.fetch(index)
                image, label = self.decode(fetched)
                use(self._in_first_colours(image, index), label, KeyedRandom(self._seed, epoch, index))
                return key
            except DamagedItem as error:
                if not self._skip_bad_images:
                    raise
                self.skip(index, error.key, str(error))
            except ImageError as error:
                if not (self._skip_bad_images and isinstance(error, UndecodableImage)):
                    raise DataError(f"{self.name}: key '{key}': {error}", self._where) from None
                self.skip(index, key, str(error))
            except MemoryError as error:
                raise DataError(f"{self.name}: key '{key}': {reason(error)}", self._where) from None
            index = (index + 1) % self.size
        raise DataError(f"{self.name}: none of its {self.size} images can be decoded", self._where)

    def _in_first_colours(self, image: AnyImage, index: int) -> AnyImage:
        """Returns an image in the colours of the first one: converts grey among coloured images, or the other way
        around, unless transform_param says what they become."""
        if self._transformer.color is not None or not hasattr(self, "shapes"):
            return image
        mode = {1: GRAY, 3: COLOR}.get(self.shapes[0][0])
        if isinstance(image, np.ndarray):
            own = {1: GRAY, 3: COLOR}.get(image.shape[2]) if image.dtype == np.uint8 else None
        else:
            own = image.mode if isinstance(image, Picture | Image.Image) else None  # a type of layer may have others
        if mode is None or own is None or own == mode:
            return image
        self.recoloured.add(index)
        return as_picture(image).coloured(mode)

    def first_shape(self, shape_of: Callable[[AnyImage], Shape]) -> Shape:
        """Returns shape_of() the first item that can be decoded; Caffe takes the first item."""
        shapes = []
        self.read(0, 0, lambda image, label, random: shapes.append(shape_of(image)))
        return shapes[0]


def random_first(rand_skip: int, request: Request) -> int:
    """Returns the item that a training begins with: a random one of the first rand_skip, item 0 in phase TEST."""
    if not rand_skip or request.phase != proto.TRAIN:
        return 0
    return KeyedRandom(request.seed, 0, 0).integer(0, rand_skip - 1)
