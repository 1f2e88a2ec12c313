"""Gives an existing net the weights of another net, matching layers by what they compute, not by their names."""

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

_SHOWN = 200  # the most characters of a list of layers in a note

# Layers that are passed over: those that leave values as they are, and Softmax, in which only one of two nets may end.
_PASSED_OVER = frozenset({"Dropout", "SpatialDropout", "Split", "Cast", "Flatten", "Softmax"})

# Attributes of ops that change nothing in phase TEST.
_TRAINING_ATTRIBUTES = frozenset({"constant", "adds", "loss_weight", "moving_average_fraction"})

# Fields of a layer that do not change what it computes from its bottoms.
_NOT_OPTIONS = (
    *("name", "type", "bottom", "top", "param", "include", "exclude", "loss_weight", "propagate_down", "phase"),
    "blobs",
)


def transfer(maker: NetMaker, net: str | os.PathLike, weights: str | os.PathLike) -> list[str]:
    """Writes the caffemodel `weights` for the prototxt `net`.

    A layer takes the weights of the source's layer that computes the same function of the same input, for the same
    readers. Layers that are there for training only, such as auxiliary classifiers, get none.

    Args:
        maker: the source: the net that was imported, with its weights.
    Returns:
        Notes on layers of the source that `net` does not have.
    Raises:
        WeightsError: the nets compute different functions, or it is unclear which layer a layer corresponds to.
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
    """Returns a note on layers or modules of the source that `net` does not have."""
    return f"left out, for {net} has no such layer: {shortened(', '.join(names), _SHOWN)}"


class _Marks:
    """Hashes by which the layers of two nets are compared.

    Attributes:
        before: tells what a layer computes, from the inputs of the net on.
        whole: tells that, and what is computed from it, up to the outputs of the net.
    """

    def __init__(self, graph: DeployGraph):
        self.before: dict[Layer, str] = {}
        self.whole: dict[Layer, str] = {}
        self._forward(graph)
        self._backward(graph)

    def _forward(self, graph: DeployGraph) -> None:
        """Sets `before`: the hash of a layer is of what it computes and of the hashes of its bottoms."""
        marks: dict[Blob, str] = {blob: f"input {blob.shape[1:]}" for blob in graph.inputs}
        for layer in graph.layers:
            if _is_passed_over(layer):
                marks.update(dict.fromkeys(layer.tops, marks[layer.bottoms[0]]))
                continue
            mark = self.before[layer] = _hash([_kind(layer), *(marks[blob] for blob in layer.bottoms)])
            marks.update((top, _hash([mark, str(index)])) for index, top in enumerate(layer.tops))

    def _backward(self, graph: DeployGraph) -> None:
        """Sets `whole`: a blob's readers are hashes of what they compute and of what reads their tops."""
        readers: dict[Blob, Counter[str]] = defaultdict(Counter)
        for layer in reversed(graph.layers):
            behind = [text for top in layer.tops for text in sorted(readers[top].elements())]
            if _is_passed_over(layer):
                readers[layer.bottoms[0]].update(behind)
                continue
            mark = _hash([_kind(layer), *behind])
            for index, blob in enumerate(layer.bottoms):
                readers[blob][_hash([mark, str(index)])] += 1
            self.whole[layer] = _hash([self.before[layer], *behind])


def _is_passed_over(layer: Layer) -> bool:
    if layer.type == "Dropout" and not layer.message.dropout_param.scale_train:  # it scales in phase TEST
        return False
    return layer.type in _PASSED_OVER or _is_flatten(layer)


def _is_flatten(layer: Layer) -> bool:
    """Returns whether a layer is a Reshape that does what Flatten does."""
    return layer.type == "Reshape" and len(layer.tops[0].shape) == 2 and layer.tops[0].shape[:1] == layer.shapes[0][:1]


def _kind(layer: Layer) -> str:
    """Returns a text that tells what a layer computes from its bottoms, the same for all layers that compute the
    same."""
    shapes = [tuple(parameter.shape) for parameter in layer.params]
    attributes = {name: value for name, value in layer.attributes().items() if name not in _TRAINING_ATTRIBUTES}
    if type(layer).attributes is Layer.attributes and layer.type not in ("Reshape", "Flatten"):
        attributes["fields"] = _options(layer)
    if isinstance(layer, Weighted) and layer.param.relu:
        attributes["relu"] = layer.param.negative_slope
    tops = [_per_sample(top) for top in layer.tops]
    kind = "Convolution" if layer.type in ("DepthwiseConvolution", "ConvolutionDepthwise") else layer.type
    return f"{kind} {shapes} {sorted(attributes.items())} {tops}"


def _options(layer: Layer) -> str:
    """Returns the fields of a layer as text, for layers whose attributes do not tell what they compute."""
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
