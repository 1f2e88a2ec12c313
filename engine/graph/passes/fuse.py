"""Neighbours that one kernel can do: BatchNorm + Scale + ReLU, and Eltwise SUM + ReLU."""

from __future__ import annotations

from engine.graph.build import Graph
from engine.layers.base import Blob, Layer


def fuse(graph: Graph) -> None:
    """Moves the work of Scale and ReLU layers into the layer before them. Only where the blob between them has no other
    reader and is no output, so that no value anyone asks for disappears; the result changes by rounding only."""
    readers: dict[Blob, list[Layer]] = {}
    for layer in graph.layers:
        for blob in layer.bottoms:
            readers.setdefault(blob, []).append(layer)
    gone: set[Layer] = set()
    for layer in graph.layers:
        while layer not in gone and len(layer.tops) == 1 and not layer.loss_weights[0]:
            nexts = readers.get(layer.tops[0], [])
            if len(nexts) != 1 or not layer.absorb(nexts[0]):
                break
            layer.tops = nexts[0].tops
            layer.loss_weights = nexts[0].loss_weights
            gone.add(nexts[0])
    graph.layers = [layer for layer in graph.layers if layer not in gone]
