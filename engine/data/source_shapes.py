"""Finds the shapes of data layers without a feeder, for the verbs that need no data: `engine check`, `engine time`."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine import proto
from engine.config import expand_ranks
from engine.data import batch_size_of, open_data, shapes_without_data
from engine.data.registry import find_reader, is_here
from engine.errors import ConfigError, EngineError, shape_text
from engine.layers.base import Shape

# Shapes of one item of public data sets, by a word in the source's name. The first that fits is taken.
KNOWN_SETS = {"siamese": (2, 28, 28), "mnist": (1, 28, 28), "cifar": (3, 32, 32)}
_COMPARING = (  # losses that compare two bottoms number by number
    "EuclideanLoss",
    "L1Loss",
    "MultiLabelLoss",
    "SigmoidCrossEntropyLoss",
    "SmoothL1Loss",
)
UNKNOWN_PICTURE, UNKNOWN_ROW = (3, 224, 224), (10,)


@dataclass(frozen=True)
class Supposition:
    """What an item is supposed to be if nothing tells.

    picture: its shape; None: what the name of the source suggests. labels: what the tops after the first are, and a top
    that is called a label: a "number", a "mask" (1, h, w), or a whole "picture"."""

    picture: Shape | None = None
    labels: str = "number"


# In the order in which most nets try them: some fit pictures of one size only, such as SegNet's.
_SIDES = ((360, 480), (530, 730), (256, 256), (300, 300), (321, 321), (513, 513), (512, 1024), (384, 512), (224, 224))
_PICTURES = (None, *((3, *sides) for sides in _SIDES), (1, 28, 28), (3, 32, 32), (1, 33, 33), (3, 12, 12), (3, 48, 48))
SUPPOSITIONS = tuple(itertools.starmap(Supposition, itertools.product(_PICTURES, ("number", "mask", "picture"))))


def suppositions(net: proto.NetParameter) -> Sequence[Supposition]:
    """Returns all suppositions, in the order in which a net tries them. If it reads HDF5, whose arrays need not be
    pictures, small ones come first, so that no InnerProduct behind them has billions of weights."""
    if any(layer.type == "HDF5Data" for layer in net.layer):
        return sorted(SUPPOSITIONS, key=lambda each: math.prod(each.picture or ()))
    return SUPPOSITIONS


class SourceShapes:
    """Tells build() the shapes of a data layer's tops: from its source, if that is here, else from the layer's
    parameters.

    net: the net that has the layers; its losses tell how many labels an item has.
    absent: takes a line for each file that is not here.
    batch_size: replaces that of the layers, unless it is 0.
    suppose: what items are if nothing tells.
    ranks: the number of ranks of the run, as paths may hold it; the rank is 0.
    skip_bad_images: as in the run.
    """

    def __init__(
        self,
        net: proto.NetParameter,
        phase: int,
        absent: Callable[[str], None],
        batch_size: int = 0,
        suppose: Supposition = SUPPOSITIONS[0],
        ranks: int = 1,
        skip_bad_images: bool = False,
    ):
        self._labels = _several_labels(net)
        self._phase, self._absent, self._batch_size, self._suppose = phase, absent, batch_size, suppose
        self._ranks, self._skip_bad_images = ranks, skip_bad_images
        self.reads = False  # whether any layer reads data
        self.supposed = False  # whether anything had to be supposed
        self.size, self.own_items = 0, False  # of the first source that is here: as in Feeder

    def __call__(self, message: proto.LayerParameter, where: str) -> list[Shape]:
        """Returns the shapes of the tops, batch axis included. Raises ConfigError if nothing tells them."""
        self.reads = True
        reader = find_reader(message.type, where)
        shapes = self._of_item(message, where, reader.source_of(message))
        batch_size = batch_size_of(message, where)
        mean_file = message.transform_param.mean_file
        if mean_file and not os.path.exists(mean_file):
            self._absent(f"{where}: mean_file {mean_file} is not here")
        return reader.top_shapes(shapes, self._batch_size or batch_size)[: len(message.top)]

    def _of_item(self, message: proto.LayerParameter, where: str, source: str) -> tuple[Shape, ...]:
        if is_here(expand_ranks(source, 0, self._ranks)):
            return self._of_source(message, where)
        try:
            shapes, why = self._with_labels(shapes_without_data(message, where), message.top), "taking data of"
        except ConfigError:  # no crop, no resize, no mean file: only the source knows
            self.supposed = True
            shapes = self._with_labels(self._supposed(message, source), message.top)
            why = "nothing else tells the size of its items, assuming"
        if source:
            self._absent(f"{where}: source {source} is not here; {why} {shape_text(shapes[0])}")
        return shapes

    def _supposed(self, message: proto.LayerParameter, source: str) -> tuple[Shape, ...]:
        picture = self._suppose.picture or _usual(message.type, source)
        mask = (1, *picture[1:])
        if find_reader(message.type).has_masks:
            return picture, mask, (1, 1, 2)
        label = {"number": (), "mask": mask, "picture": picture}[self._suppose.labels]
        if len(message.top) == 1 and "label" in message.top[0]:
            return (label or picture,)
        return picture, *[label] * max(1, len(message.top) - 1)

    def _with_labels(self, shapes: tuple[Shape, ...], tops: Sequence[str]) -> tuple[Shape, ...]:
        """Returns the shapes with as many labels as the net reads, where an item has one number."""
        given = dict(zip(tops, shapes, strict=False))  # a layer may leave out its last tops
        known = [(self._labels[top],) if top in self._labels and not shape else shape for top, shape in given.items()]
        return (*known, *shapes[len(known) :])

    def _of_source(self, message: proto.LayerParameter, where: str) -> tuple[Shape, ...]:
        try:
            source = open_data(message, self._phase, 1, where, self._skip_bad_images, ranks=self._ranks)
        except ConfigError:
            raise
        except EngineError as error:  # so that it is found together with the other errors of the net
            raise ConfigError(str(error).removeprefix(f"{where}: "), where, absent=error.absent) from None
        if not self.size:
            self.size, self.own_items = source.size, source.reader.owners is not None
        return source.shapes


def _several_labels(net: proto.NetParameter) -> dict[str, int]:
    """Returns, by blob, how many labels of a sample the net reads: as many as the outputs of an InnerProduct or a
    Convolution with which a loss compares them, or as many as a Slice cuts."""
    scores: dict[str, int] = {}
    labels: dict[str, int] = {}
    for layer in net.layer:
        if layer.type in _COMPARING and len(layer.bottom) > 1:
            for one, other in (layer.bottom[:2], layer.bottom[1::-1]):
                if one in scores and other not in scores:
                    labels[other] = scores[one]
        for top in layer.top:
            if layer.type in ("InnerProduct", "Convolution"):
                param = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
                scores[top] = param.num_output
            elif top not in layer.bottom:
                scores.pop(top, None)
    for layer in reversed(net.layer):  # backwards: a Slice may cut what another one has cut
        if layer.type == "Slice" and layer.bottom and layer.top and layer.slice_param.axis in (1, -1):
            pieces, points = [labels.get(top, 1) for top in layer.top], layer.slice_param.slice_point
            labels[layer.bottom[0]] = points[-1] + pieces[-1] if points else len(pieces) * max(pieces)
    return labels


def _usual(layer_type: str, source: str) -> Shape:
    if layer_type == "HDF5Data":
        return UNKNOWN_ROW
    return next((shape for word, shape in KNOWN_SETS.items() if word in source.lower()), UNKNOWN_PICTURE)
