"""Weights for a net that is there: from another net, by what layers compute, whatever they are called."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from engine import proto
from engine.config import NetConfig, read_net
from engine.errors import WeightsError, shortened
from engine.exchange.deploy_graph import DeployGraph, deploy_graph
from engine.exchange.net_maker import NetMaker
from engine.layers.base import Blob, Layer
from engine.layers.weighted import Weighted
from engine.weights import write_caffemodel

_SHOWN = 200  # characters of a list of layers

# Layers that leave values as they are, or that a net ends in or not.
_NOTHING = frozenset({"Dropout", "SpatialDropout", "Split", "Cast", "Flatten", "Softmax"})

# Attributes that make no difference to what phase TEST computes.
_OF_TRAINING = frozenset({"constant", "adds", "loss_weight", "moving_average_fraction"})

# Fields of a layer that say nothing about what it computes from its bottoms.
_NOT_OPTIONS = (
    *("name", "type", "bottom", "top", "param", "include", "exclude", "loss_weight", "propagate_down", "phase"),
    "blobs",
)


def transfer(maker: NetMaker, net: str | os.PathLike, weights: str | os.PathLike) -> list[str]:
    """Writes the caffemodel `weights` for the prototxt `net`, of another net's weights; returns notes on what of these
    the net has no place for.

    A layer takes the weights of the one that computes the same function of the same input, for the same readers.
    Layers that only training has, such as auxiliary classifiers, get none.

    Raises WeightsError where the nets differ: no weights would make the results the same.
    """
    config = read_net(net)
    ours, theirs = _Marks(deploy_graph(config)), _Marks(deploy_graph(NetConfig(maker.message, maker.source)))
    known = set(theirs.before.values())
    for layer, mark in ours.before.items():
        if mark not in known:
            raise WeightsError(
                f"the net differs from {net} in what that net's layer '{layer.name}' ({layer.type}) computes; without "
                "--onto, a net of the source's own is written",
                maker.source,
            )
    by_mark: dict[str, list[Layer]] = defaultdict(list)
    for layer, mark in theirs.whole.items():
        by_mark[mark].append(layer)
    found: dict[str, list[np.ndarray]] = {}
    placed: set[str] = set()
    for layer, mark in ours.whole.items():
        if layer.params:
            if len(by_mark[mark]) != 1:
                raise WeightsError(
                    f"layer '{layer.name}' ({layer.type}) of {net}: {len(by_mark[mark])} layers of the source compute "
                    "the same of the same input, for the same readers; expected one",
                    maker.source,
                )
            found[layer.name] = maker.weights[by_mark[mark][0].name]
            placed.add(by_mark[mark][0].name)
    write_caffemodel(weights, config.message, found)
    rest = [name for name in maker.weights if name not in placed]
    return [left_out(rest, net)] if rest else []


def left_out(names: Sequence[str], net: str | os.PathLike) -> str:
    """A note on layers or modules of the source."""
    return f"left out, for {net} has no such layer: {shortened(', '.join(names), _SHOWN)}"


class _Marks:
    """Marks by which layers of two nets are compared. before: of what a layer computes, from the inputs on. whole: of
    that, and of what is done with it up to the outputs."""

    def __init__(self, graph: DeployGraph):
        self.before: dict[Layer, str] = {}
        self.whole: dict[Layer, str] = {}
        self._forward(graph)
        self._backward(graph)

    def _forward(self, graph: DeployGraph) -> None:
        marks: dict[Blob, str] = {blob: f"input {blob.shape[1:]}" for blob in graph.inputs}
        for layer in graph.layers:
            if _does_nothing(layer):
                marks.update(dict.fromkeys(layer.tops, marks[layer.bottoms[0]]))
                continue
            mark = self.before[layer] = _hash([_kind(layer), *(marks[blob] for blob in layer.bottoms)])
            marks.update((top, _hash([mark, str(index)])) for index, top in enumerate(layer.tops))

    def _backward(self, graph: DeployGraph) -> None:
        readers: dict[Blob, Counter[str]] = defaultdict(Counter)
        for layer in reversed(graph.layers):
            behind = [text for top in layer.tops for text in sorted(readers[top].elements())]
            if _does_nothing(layer):
                readers[layer.bottoms[0]].update(behind)
                continue
            mark = _hash([_kind(layer), *behind])
            for index, blob in enumerate(layer.bottoms):
                readers[blob][_hash([mark, str(index)])] += 1
            self.whole[layer] = _hash([self.before[layer], *behind])


def _does_nothing(layer: Layer) -> bool:
    if layer.type == "Dropout" and not layer.message.dropout_param.scale_train:
        return False
    return layer.type in _NOTHING or _is_flat(layer)


def _is_flat(layer: Layer) -> bool:
    """Whether a Reshape does what Flatten does, which an InnerProduct that follows does, too."""
    return layer.type == "Reshape" and len(layer.tops[0].shape) == 2 and layer.tops[0].shape[:1] == layer.shapes[0][:1]


def _kind(layer: Layer) -> str:
    """What the layer does with its bottoms, in words that depend on nothing else."""
    shapes = [tuple(parameter.shape) for parameter in layer.params]
    attributes = {name: value for name, value in layer.attributes().items() if name not in _OF_TRAINING}
    if type(layer).attributes is Layer.attributes and layer.type not in ("Reshape", "Flatten"):
        attributes["fields"] = _options(layer)
    if isinstance(layer, Weighted) and layer.param.relu:
        attributes["relu"] = layer.param.negative_slope
    tops = [_per_sample(top) for top in layer.tops]
    kind = "Convolution" if layer.type in ("DepthwiseConvolution", "ConvolutionDepthwise") else layer.type
    return f"{kind} {shapes} {sorted(attributes.items())} {tops}"


def _options(layer: Layer) -> str:
    """The fields of a layer that has no attributes to tell what it computes."""
    said = proto.LayerParameter()
    said.CopyFrom(layer.message)
    for field in _NOT_OPTIONS:
        said.ClearField(field)
    if layer.type == "Eltwise" and said.eltwise_param.operation == said.eltwise_param.SUM:
        said.eltwise_param.ClearField("operation")  # its default
    return str(said)


def _per_sample(blob: Blob) -> tuple[int, ...]:
    return blob.shape[1:]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
