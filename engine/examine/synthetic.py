"""Makes random input that is valid for the layers that read it, for `engine time` and `engine check --run`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from engine.data.feeder import Feeder
from engine.data.prefetch import Batch
from engine.data.source_shapes import SUPPOSITIONS, SourceShapes, Supposition
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer, Shape

if TYPE_CHECKING:
    from engine import proto
    from engine.comm.world import World
    from engine.config import NetConfig
    from engine.layers.ctc_loss import CTCLoss
    from engine.layers.roi_pooling import RegionPooling
    from engine.net import Net

PIXELS = 50.0  # standard deviation of synthetic pictures, about that of real ones with their mean subtracted
COLOURS = 4  # channels, up to which a blob may be pictures
_EXPONENTIAL = ("YoloDetectionOutput", "Yolov3DetectionOutput")  # width and height are anchors times exp(x)

# A function of the layer that reads a blob, the blob's shape and a generator; returns values.
Maker = Callable[[Layer, Shape, np.random.Generator], np.ndarray]


class SyntheticFeeder(Feeder):
    """Feeds random values in place of data, in batches of `batch_size`, or of the layers' own size if it is 0.

    The blobs of Input and DummyData layers, whose sizes the net itself gives, get as many samples. It writes nothing.
    """

    def __init__(
        self,
        config: NetConfig,
        phase: int,
        seed: int,
        world: World,
        *,
        batch_size: int = 0,
        suppose: Supposition = SUPPOSITIONS[0],
        **_: object,
    ):
        super().__init__(config, phase, seed, world)
        self._shapes_for = partial(SourceShapes, config.message, phase, lambda text: None, suppose=suppose)
        self._shapes = self._shapes_for(batch_size=batch_size)
        self._size, self._generator = batch_size or 1, np.random.default_rng(seed)
        if batch_size:
            shrink(config.message, batch_size)

    def shapes_of(self, message: proto.LayerParameter, where: str) -> list[Shape]:
        return self._shapes(message, where)

    def shapes_for(self, size: int) -> SourceShapes:
        return self._shapes_for(batch_size=size)

    @property
    def batch_size(self) -> int:
        return self._size

    def start(self, start: int = 0, first_rank: int = 0) -> None:
        self._taken = 0

    def take(self) -> Batch:
        self._taken += 1
        return Batch(self._taken - 1, self._size)

    def feed(self, net: Net, batch: Batch) -> int:
        _feed(net, self._generator)
        return batch.first_sample

    def connect(self, net: Net) -> None:
        """Writes nothing."""


def shrink(message: proto.NetParameter, size: int) -> None:
    """Limits to `size` the samples in the blobs of a net's Input and DummyData layers, in ContinuationIndicator layers,
    and in those that BatchNorm takes its statistics over."""
    for layer in message.layer:
        for shape in (*layer.input_param.shape, *layer.dummy_data_param.shape):
            if shape.dim:
                shape.dim[0] = min(shape.dim[0], size)
        numbers = layer.dummy_data_param.num
        numbers[:] = [min(number, size) for number in numbers]
        if layer.continuation_indicator_param.batch_size > size:
            layer.continuation_indicator_param.batch_size = size
    for holder in (message, *(layer.batch_norm_param for layer in message.layer)):
        name = "bn_stats_batch_size" if holder is message else "stats_batch_size"
        if getattr(holder, name) > size:
            setattr(holder, name, size)


def feed_synthetic(net: Net, seed: int = 1) -> None:
    """Gives random values to every input of a net."""
    _feed(net, np.random.default_rng(seed))


def _feed(net: Net, generator: np.random.Generator) -> None:
    own = {top for layer in net.self_fed for top in layer.tops}
    for blob in net.inputs:
        if blob not in own:
            net.feed(blob, np.asarray(values(net.graph, blob, generator), np.float32))


def values(graph: Graph, blob: Blob, generator: np.random.Generator) -> np.ndarray:
    """Returns random values for a blob, in its shape, that are valid for the layer that reads it.

    These are labels that a loss knows, boxes, regions of a picture; else numbers around 0, as large as a picture's if
    the blob may be pictures, else about 1. They are also about 1 if the net has a layer that would make boxes too large
    for float32 of them, as long as it is not trained."""
    found = _reader(graph, blob)
    if found is None:
        is_picture = len(blob.shape) >= 4 and blob.shape[1] <= COLOURS
        is_large = is_picture and not any(layer.type in _EXPONENTIAL for layer in graph.layers)
        return (PIXELS if is_large else 1) * generator.standard_normal(blob.shape, np.float32)
    layer, make = found
    return make(layer, blob.shape, generator)


def _reader(graph: Graph, blob: Blob) -> tuple[Layer, Maker] | None:
    """Returns the first layer that needs particular values in a blob, which it reads directly or through layers that
    pass values on, and what makes these values; None if there is none."""
    for layer in graph.layers:
        for i, bottom in enumerate(layer.bottoms):
            if bottom is not blob:
                continue
            if layer.type in _HAND_ON:
                found = next((found for top in layer.tops if (found := _reader(graph, top))), None)
            else:
                make = _maker(layer, i)
                found = (layer, make) if make else None
            if found:
                return found
    return None


_HAND_ON = frozenset({"Split", "Slice", "Reshape", "Flatten", "Permute", "Concat", "Cast", "Gather", "Scatter"})


def _maker(layer: Layer, i: int) -> Maker | None:
    """Returns what makes the values that a layer needs in its bottom i; None if any values will do."""
    if (layer.type, i) in _MAKERS:
        return _MAKERS[layer.type, i]
    scores = layer.bottoms[0].shape
    is_label = i in layer.constant_bottoms or (i == 1 and not layer.differentiable)
    if is_label and len(scores) > 1 and scores != layer.bottoms[i].shape:
        return _classes
    if layer.type in ("SoftmaxWithLoss", "SoftmaxCrossEntropyLoss", "Accuracy") and i == 1:
        return _distributions
    return None


def _distributions(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes labels that are distributions over the classes, in the shape of the scores."""
    weights = generator.random(shape)
    return weights / weights.sum(axis=_class_axis(layer), keepdims=True)


def _classes(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes labels from 0 to the number of classes, which is the size of the class axis of the layer's first bottom."""
    return generator.integers(0, layer.bottoms[0].shape[_class_axis(layer)], shape)


def _class_axis(layer: Layer) -> int:
    return getattr(layer, "axis", 1)


def _two_values(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, 2, shape)


def _signs(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    return 2 * _two_values(layer, shape, generator) - 1


def _words(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, layer.message.embed_param.input_dim, shape)


def _samples(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, layer.bottoms[0].shape[0], shape)


def _sequences(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes indicators (time, sample): 0 where a sequence begins, 1 where it goes on."""
    return np.broadcast_to((np.arange(shape[0]) > 0).reshape(-1, *[1] * (len(shape) - 1)), shape)


def _corners(count: int, generator: np.random.Generator) -> np.ndarray:
    """Returns boxes (count, 4): x1, y1, x2, y2 in fractions of a picture's sides."""
    sides = generator.uniform(0.2, 0.5, (count, 2))
    begin = generator.uniform(0, 1 - sides)
    return np.hstack([begin, begin + sides])


def _boxes(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes one box for each sample. The blob is (1, 1, boxes, 8): sample, class, instance, x1, y1, x2, y2, difficult,
    with -1 in unused rows; or (N, 1, boxes, 5): class, centre, width, height, with 0 in unused rows."""
    if shape[3] == 5:
        rows = np.zeros(shape)
        corners = _corners(shape[0], generator)
        rows[:, 0, 0, 1:3], rows[:, 0, 0, 3:] = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]
        return rows
    rows = np.full((shape[2], shape[3]), -1.0)
    count = min(shape[2], _sample_count(layer))
    rows[:count, 0] = np.arange(count)
    rows[:count, 1], rows[:count, 2] = 1, 0
    rows[:count, 3:7] = _corners(count, generator)
    rows[:count, 7:] = 0
    return rows.reshape(shape)


def _sample_count(layer: Layer) -> int:
    """Returns the number of samples of a layer that reads boxes: its first bottom's first axis. (DetectionEvaluate's
    first bottom is a list of detections of any sample.)"""
    return layer.bottoms[0].shape[0]


def _regions(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes regions (regions, 5, ...): sample, x1, y1, x2, y2 in pixels of the picture that the features come from."""
    samples, _, height, width = layer.bottoms[0].shape
    scale = cast("RegionPooling", layer).param.spatial_scale
    corners = _corners(shape[0], generator) * np.array([width, height] * 2) / scale
    rows = np.column_stack([np.arange(shape[0]) % samples, corners])
    return rows.reshape(shape)


def _of_ctc(i: int) -> Maker:
    """Returns what makes bottom i of a CTC loss: labels, which come last, indicators, or lengths and numbers of
    labels."""

    def make(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
        bottoms, (steps, _, classes) = layer.bottoms, layer.bottoms[0].shape[:3]
        loss = cast("CTCLoss", layer)
        most = max(1, loss.time // 2)  # labels of a sequence: there must be steps for the blanks between them
        if i == len(bottoms) - 1:
            labels = generator.integers(0, classes - loss.shift, shape)
            if len(bottoms) == 3:
                labels[most:] = -1
            elif len(bottoms) == 2:
                labels[:, most:] = loss.blank
            return labels
        if len(bottoms) == 3:
            return _sequences(layer, shape, generator)
        return np.full(shape, steps if i == 1 else min(most, bottoms[3].shape[0]))

    return make


def _picture_size(layer: Layer, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Makes (1, 3): height, width and scale of the picture that a Proposal layer's scores come from."""
    _, _, height, width = layer.bottoms[0].shape
    stride = layer.message.proposal_param.feat_stride
    return np.array([height * stride, width * stride, 1.0][: shape[-1]] * shape[0]).reshape(shape)


_MAKERS: dict[tuple[str, int], Maker] = {
    ("SigmoidCrossEntropyLoss", 1): _two_values,
    ("MultiLabelLoss", 1): _signs,
    ("MultiLabelAccuracy", 1): _signs,
    ("ContrastiveLoss", 2): _two_values,
    ("Embed", 0): _words,
    ("BatchReindex", 1): _samples,
    ("LSTM", 1): _sequences,
    ("Lstm", 1): _sequences,
    ("GRU", 1): _sequences,
    ("RNN", 1): _sequences,
    ("MultiBoxLoss", 3): _boxes,
    ("RegionLoss", 1): _boxes,
    ("Yolov3", 1): _boxes,
    ("DetectionEvaluate", 1): _boxes,
    ("EvalDetection", 1): _boxes,
    ("ROIPooling", 1): _regions,
    ("PSROIPooling", 1): _regions,
    ("PSROIAlign", 1): _regions,
    ("DeformablePSROIPooling", 1): _regions,
    ("ROIAlign", 1): _regions,
    ("RoIAlign", 1): _regions,
    ("Proposal", 2): _picture_size,
    **{(kind, i): _of_ctc(i) for kind in ("CTCLoss", "WarpCTCLoss", "CtcLoss") for i in (1, 2, 3)},
}
