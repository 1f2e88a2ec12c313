"""Fuses neighbours into one op: BatchNorm + Scale + sum + ReLU + Split, weights + activation, sum + ReLU."""

from __future__ import annotations

from engine.graph.graph import Graph
from engine.layers.base import Layer


def fuse(graph: Graph) -> None:
    """Moves the work of such layers into the first of them, which then stands where the last stood (all that the others
    read is known there). Only where the blob between them has no other reader and is no output, so that no value anyone
    asks for disappears; the result changes by rounding only."""
    readers = graph.readers()
    stands_for: dict[Layer, Layer | None] = {}  # the last of a chain by the first, and nothing by the others
    for layer in graph.layers:
        gone: list[Layer] = []
        while layer not in stands_for and len(layer.tops) == 1 and not layer.loss_weights[0]:
            nexts = readers.get(layer.tops[0], [])
            if len(nexts) != 1 or not all(nexts[0].message.propagate_down) or not layer.absorb(nexts[0]):
                break
            for blob in nexts[0].bottoms:
                if blob in layer.bottoms:
                    readers[blob] = [layer if reader is nexts[0] else reader for reader in readers[blob]]
            layer.tops = nexts[0].tops
            layer.loss_weights = nexts[0].loss_weights
            gone.append(nexts[0])
        if gone:
            stands_for.update(dict.fromkeys([layer, *gone]))
            stands_for[gone[-1]] = layer
            graph.fused[layer] = gone
    graph.layers = [kept for layer in graph.layers if (kept := stands_for.get(layer, layer))]
