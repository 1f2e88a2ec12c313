"""Inserts a Split after each blob that several layers read: its tops share memory, their gradients are summed."""

from __future__ import annotations

from engine import proto
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer
from engine.layers.split import Split


def insert_splits(graph: Graph) -> None:
    """Gives every tensor exactly one reader, so that every gradient has exactly one writer."""
    readers: dict[Blob, list[tuple[Layer, int]]] = {}
    for layer in graph.layers:
        for i, blob in enumerate(layer.bottoms):
            readers.setdefault(blob, []).append((layer, i))
    layers = []
    for layer in graph.layers:
        layers.append(layer)
        for blob in layer.tops:
            uses = readers.get(blob, [])
            if len(uses) > 1:
                layers.append(insert_split(layer, blob, uses))
    graph.layers = layers


def insert_split(producer: Layer, blob: Blob, uses: list[tuple[Layer, int]]) -> Split:
    """Returns a Split of the blob, and makes its readers read the Split's tops. uses: (layer, number of its bottom) of
    each reader."""
    name = f"{blob.name}_{producer.name}_split"
    message = proto.LayerParameter(name=name, type="Split", bottom=[blob.name])
    split = Split(message, producer.where, producer.phase)
    split.inserted = True
    split.bottoms = [blob]
    for number, (layer, i) in enumerate(uses):
        message.top.append(f"{name}_{number}")
        layer.bottoms[i] = Blob(message.top[-1], blob.shape)
        split.tops.append(layer.bottoms[i])
    split.loss_weights = [0.0] * len(uses)
    return split
