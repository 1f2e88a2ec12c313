"""Cuts a net before the layers that score it, so that scores can be averaged before they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine import proto
from engine.config import NetConfig
from engine.errors import ConfigError
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer, Shape
from engine.layers.labels import axis_of_classes
from engine.layers.registry import layer_types

_COPY = "{} as scored"  # a blob of the body that the head reads


@dataclass
class Cut:
    """A net that is cut in two."""

    body: NetConfig  # all but the scoring layers; a copy of each blob that these read is among its outputs
    head: list[proto.LayerParameter]  # the scoring layers
    scores: dict[str, int]  # blobs of scores -> the axis of the classes
    negated: set[str]  # those of them whose smallest score is the best (distances)
    read: list[str]  # all blobs of the body that the head reads, labels among them

    def copy_of(self, blob: str) -> str:
        """Returns the name of the body's output that is a copy of a blob of `read`."""
        return _COPY.format(blob)

    def head_net(self, shapes: Mapping[str, Shape]) -> NetConfig:
        """Returns the head as a net on Inputs. shapes: by the name of each blob of `read`."""
        net = proto.NetParameter(name="head", state=self.body.message.state)
        for blob in self.read:
            net.layer.add(name=f"input of {blob}", type="Input", top=[blob]).input_param.shape.add(dim=shapes[blob])
        net.layer.extend(self.head)
        return NetConfig(net, self.body.path)


def cut(config: NetConfig, graph: Graph) -> Cut:
    """Cuts a net before its scoring layers. Raises ConfigError if it has none, or if of two that read one blob, one
    takes the largest score for the best and the other the smallest. graph: of the config."""
    head = _head(graph.layers)
    if not head:
        known = ", ".join(sorted(name for name, cls in layer_types().items() if _scores(name, cls)))
        raise ConfigError(
            f"the net has no probabilities to average: expected a layer of {known} at its end",
            config.path,
        )
    made = {top for layer in head for top in layer.tops}
    body, read, scores = [], {}, {}
    judges: dict[str, Layer] = {}  # the first of each blob of `scores`
    for layer in graph.layers:
        if layer not in head:
            body.append(layer.message)
            continue
        for blob in layer.bottoms:
            if blob not in made and blob not in read:
                read[blob] = blob.name
                copy = _COPY.format(blob.name)
                body.append(proto.LayerParameter(name=copy, type="Split", bottom=[blob.name], top=[copy]))
        if layer.bottoms[0] not in made:
            name = layer.bottoms[0].name
            scores.setdefault(name, axis_of_classes(layer, layer.asked_axis))
            first = judges.setdefault(name, layer)
            if layer.smallest_is_best != first.smallest_is_best:
                raise layer.error(
                    f"takes the {_best(layer)} score of '{name}' for the best, layer '{first.name}' the "
                    f"{_best(first)}; then its scores have no average"
                )
    net = proto.NetParameter()
    net.CopyFrom(config.message)
    del net.layer[:]
    net.layer.extend(body)
    negated = {name for name, layer in judges.items() if layer.smallest_is_best}
    return Cut(NetConfig(net, config.path), [layer.message for layer in head], scores, negated, list(read.values()))


def _scores(type_: str, layer: Layer | type[Layer]) -> bool:
    """Returns whether layers of a type read scores of classes, or make probabilities of them."""
    return "Softmax" in (type_, layer.probabilities)


def _best(layer: Layer) -> str:
    return "smallest" if layer.smallest_is_best else "largest"


def _head(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the scoring layers, and layers that only read their tops. A Softmax within the net, as in attention, does
    not count as scoring."""
    inner: set[Layer] = set()  # scoring layers whose tops the net goes on with
    while True:
        head: list[Layer] = []
        given = _given(layers)
        origins: dict[Blob, set[Layer]] = {}  # blobs of the head, with the scoring layers that they come from
        before = len(inner)
        for layer in layers:
            from_head = set().union(*(origins.get(blob, set()) for blob in layer.bottoms))
            others = {blob for blob in layer.bottoms if blob not in origins}
            if from_head and (layer.params or not others <= given):
                inner |= from_head
            elif from_head or (_scores(layer.type, layer) and layer not in inner and set(layer.bottoms[1:]) <= given):
                head.append(layer)
                origins.update(dict.fromkeys(layer.tops, from_head or {layer}))
        if len(inner) == before:
            return head


def _given(layers: Sequence[Layer]) -> set[Blob]:
    """Returns the blobs that depend on the data alone, not on parameters: labels, and what is cut out of them."""
    given: set[Blob] = set()
    for layer in layers:
        if not layer.params and set(layer.bottoms) <= given:
            given.update(layer.tops)
    return given
