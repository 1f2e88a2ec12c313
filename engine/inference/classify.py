"""`engine classify`: finds the most likely classes of images."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from engine import proto
from engine.config import NetConfig
from engine.config.idle_fields import STRETCHES
from engine.data.decode import COLOR, GRAY, LINEAR, ImageError, as_picture, open_image
from engine.data.keyed_random import KeyedRandom
from engine.data.labels import LABELS, labels_files
from engine.data.limits import MAX_BYTES
from engine.data.mean import read_mean
from engine.data.registry import find_reader, open_source, recognised
from engine.data.source_shapes import SourceShapes
from engine.data.transform import Transformer
from engine.errors import ConfigError, DataError, shape_text
from engine.files import is_regular, read_bytes, read_text
from engine.inference.deploy import deploy, input_layer, test_layers
from engine.inference.trained import load
from engine.net import Net
from engine.report.log import warn

_RESIZES = ("resize_param", "random_resize_param", "random_aspect_ratio_param", *STRETCHES)


@dataclass
class Preprocessing:
    """How pictures become input of the net. What is not given is as in the transform_param of the net's data layer."""

    # (height, width) to resize to before the centre is cropped; None: as the data layer does, else the net's input
    images_dim: tuple[int, int] | None = None
    mean_file: str = ""  # if it has another size than the pictures before the crop, the means of its channels count
    mean_value: list[float] = field(default_factory=list)  # one, or one for each channel (B, G, R)
    input_scale: float | None = None  # factor after the mean is subtracted


class Classifier:
    """Runs a trained net on one picture at a time. Raises ConfigError, DataError, WeightsError."""

    def __init__(self, config: NetConfig, weights: Sequence[str], preprocessing: Preprocessing):
        source = input_layer(config)
        shape = _input_shape(config, source)
        self._shape = shape[1:]
        deployed = deploy(config, (1, *self._shape))
        self._last = {top: layer.type for layer in deployed.message.layer for top in layer.top}
        self._net = Net(deployed, proto.TEST)
        load(self._net, weights)
        transform = proto.TransformationParameter()
        self._size: tuple[int, int] | None = None  # (height, width) that ImageData resizes to before it transforms
        if source is not None:
            transform = find_reader(source.type).transform_of(source, None)
            if preprocessing.images_dim is None and source.image_data_param.new_height:
                self._size = source.image_data_param.new_height, source.image_data_param.new_width
        param = _transform_param(transform, preprocessing, self._shape, self._size)
        self._transformer = Transformer(param, proto.TEST)
        if len(self._net.graph.outputs) != 1:
            names = ", ".join(blob.name for blob in self._net.graph.outputs)
            raise ConfigError(f"expected one output, the scores of the classes; got {names}", config.path)

    @property
    def classes(self) -> int:
        return math.prod(self._net.graph.outputs[0].shape)

    @property
    def gives(self) -> str:
        """Words for people that say what the numbers are; "" for probabilities of classes of which one is right."""
        last = self._last[self._net.graph.outputs[0].name]
        if last == "Sigmoid":
            return "a probability for each label; several labels may be right"
        return "" if last == "Softmax" else "scores, no probabilities: the net ends in neither a Softmax nor a Sigmoid"

    def scores(self, picture: str) -> np.ndarray:
        """Returns the net's only output for a picture, float32 (classes). Raises DataError."""
        content = read_bytes(picture, DataError, most=MAX_BYTES)
        try:
            pixels = np.empty(self._shape, np.float32)
            image = open_image(content, GRAY if self._shape[0] == 1 else COLOR)
            if self._size:
                height, width = self._size
                image = as_picture(image).resized((width, height), LINEAR)
            self._transformer.apply(image, KeyedRandom(0, 0, 0), pixels)
        except ImageError as error:
            raise DataError(str(error), picture) from None
        self._net.feed(self._net.inputs[0], pixels[np.newaxis])
        (scores,) = self._net.forward().values()
        return scores.ravel()


def read_labels(path: str, classes: int | None = None) -> list[str]:
    """Returns the names of classes, of which a file has one on each line. Raises DataError, also if their number is not
    `classes`."""
    labels = read_text(path, DataError).splitlines()
    if classes is not None and len(labels) != classes:
        raise DataError(f"{len(labels)} labels for a net of {classes} classes", path)
    return labels


def found_labels(config: NetConfig, classes: int) -> list[str]:
    """Returns the names of classes: from the labels.txt that convert_imageset wrote with the net's data, else from the
    one beside the net, else the names of the class folders of its data; the first of these that has so many classes.
    Returns [] if none has."""
    params = [param for layer in config.message.layer for param in (layer.data_param, layer.image_data_param)]
    sources = list(dict.fromkeys(param.source for param in params if param.source))
    found = chain(written_labels(config, sources), map(_class_folders, sources))  # the last take a while to find
    return next((labels for labels in found if len(labels) == classes), [])


def written_labels(config: NetConfig, sources: Iterable[str]) -> Iterator[list[str]]:
    """Returns an iterator over the contents of each labels.txt that is there: those that convert_imageset has written
    with the sources, then the one beside the net. Raises DataError."""
    beside = os.path.join(os.path.dirname(config.path), LABELS)
    paths = chain(*map(labels_files, sources), [beside])
    return (read_labels(path) for path in paths if is_regular(path))


def _class_folders(source: str) -> list[str]:
    """Returns the names of a source's class folders; [] if it has none, or is not here."""
    if recognised(source) not in ("FOLDER", "ZIP", "TAR"):
        return []
    try:
        return list(open_source(source).classes)
    except DataError:  # whoever reads it says what is wrong
        return []


def best(scores: np.ndarray, count: int, labels: Sequence[str] = ()) -> Iterator[tuple[float, str]]:
    """(score, label or number) of the highest `count`, the highest first. labels: one for each score, or none."""
    for index in map(int, np.argsort(-scores, kind="stable")[:count]):
        yield float(scores[index]), labels[index] if labels else str(index)


def _input_shape(config: NetConfig, source) -> tuple[int, ...]:
    """(n, c, h, w): of the Input, or of what the data layer gives, whose source need not be there."""
    if source is None:
        layer = next(layer for layer in test_layers(config) if layer.type == "Input")
        shape = tuple(layer.input_param.shape[0].dim) if layer.input_param.shape else ()
    else:
        shape = tuple(SourceShapes(config.message, proto.TEST, warn)(source, config.path)[0])
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise ConfigError(f"expected an input of pictures, n x 1 or 3 x h x w; got {shape_text(shape)}", config.path)
    return shape


def _transform_param(own, asked: Preprocessing, shape: tuple[int, ...], size: tuple[int, int] | None):
    """The net's own transform_param with what was asked for in its place. size: (height, width) of the pictures that it
    gets, if they are of one. Raises ConfigError for an images_dim that is smaller than the net's input."""
    param = type(own)()
    param.CopyFrom(own)
    _, height, width = shape
    dims = asked.images_dim
    if dims and (dims[0] < height or dims[1] < width):
        raise ConfigError(
            f"--images_dim {dims[0]},{dims[1]} is smaller than the net's input, which is cropped from the picture: "
            f"expected at least {height},{width}"
        )
    resizes = any(param.HasField(field) for field in _RESIZES)
    if dims is None and size is None and not resizes:
        replaced = asked.mean_value or asked.mean_file  # then the net's own file need not be there
        dims = (None if replaced else _own_dims(own)) or (height, width)
    if dims:
        for field in _RESIZES:
            param.ClearField(field)
        param.resize_param.height, param.resize_param.width = dims
    param.crop_h, param.crop_w = height, width
    if asked.input_scale is not None:
        param.scale = asked.input_scale
    if asked.mean_value or asked.mean_file:
        param.ClearField("mean_file")
        del param.mean_value[:]
        param.mean_value.extend(asked.mean_value)
    mean_file = asked.mean_file or param.mean_file
    if mean_file:
        mean = read_mean(mean_file)
        param.ClearField("mean_file")
        if mean.shape[1:] == (dims or (_resized_dims(own) if resizes else size)):
            param.mean_file = mean_file
        else:
            param.mean_value.extend(float(value) for value in mean.mean(axis=(1, 2)))
    return param


def _resized_dims(own) -> tuple[int, int] | None:
    """The size that a net's own transform_param gives to every picture before the crop; None where it depends on these,
    or on chance."""
    resize = own.resize_param
    others = any(own.HasField(field) for field in _RESIZES[1:])
    if others or resize.prob < 1 or resize.resize_mode == resize.FIT_SMALL_SIZE:
        return None
    return resize.height, resize.width


def _own_dims(own) -> tuple[int, int] | None:
    """The size of a net's mean image, which is that of the pictures that it was trained on."""
    return read_mean(own.mean_file).shape[1:] if own.mean_file else None
