"""Fuses neighbours into one op: BatchNorm + Scale + sum + ReLU + Split, weights + activation, sum + ReLU."""

from __future__ import annotations

from engine.graph.graph import Graph
from engine.layers.base import Layer


def fuse(graph: Graph) -> None:
    """Moves the work of such a chain of layers into the first, which takes the place of the last: there all that the
    others read is made. A blob between two of them must have no other reader and be no output, so that no value that
    anybody asks for disappears. The result changes by rounding only."""
    readers = graph.readers()
    # Layer of a chain -> the layer that takes its place: the first for the last, None for the others.
    stands_for: dict[Layer, Layer | None] = {}
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
