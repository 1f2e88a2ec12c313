"""Which blobs need a gradient: something below them learns, and a loss lies above them. The rest of backward is
pruned.
"""

from __future__ import annotations

from engine.errors import ConfigError
from engine.graph.build import Graph
from engine.layers.base import Blob, Layer


def mark_gradients(graph: Graph, training: bool) -> None:
    """Sets `needs_gradient` on every blob. With `force_backward` gradients also flow to inputs, and from every output.

    Raises ConfigError when a gradient would have to pass a layer that has none.
    """
    if not training and not graph.force_backward:
        return
    wanted = _below(graph)
    reached: set[Blob] = set(graph.outputs) if graph.force_backward else set()
    for layer in reversed(graph.layers):
        loss = any(layer.loss_weights)
        if not (loss or any(top in reached for top in layer.tops)):
            continue
        if not layer.differentiable:
            continue
        for i, blob in enumerate(layer.bottoms):
            if blob in wanted and i not in layer.constant_bottoms and _propagates(layer, i):
                reached.add(blob)
                blob.needs_gradient = True
    for layer in graph.layers:
        _check_passable(layer)
    for blob in graph.outputs:  # gradients that Python sets
        blob.needs_gradient = graph.force_backward and blob in wanted


def _below(graph: Graph) -> set[Blob]:
    """Blobs that depend on something that learns (or on an input, with force_backward)."""
    wanted: set[Blob] = set()
    for layer in graph.layers:
        learns = any((parameter.owner or parameter).learnable for parameter in layer.params)
        passes = any(
            blob in wanted and _propagates(layer, i) and i not in layer.constant_bottoms
            for i, blob in enumerate(layer.bottoms)
        )
        is_input = graph.force_backward and not layer.bottoms
        if layer.differentiable and (learns or passes or is_input):
            wanted.update(layer.tops)
    return wanted


def _propagates(layer: Layer, i: int) -> bool:
    flags = layer.message.propagate_down
    return flags[i] if i < len(flags) else True


def _check_passable(layer: Layer) -> None:
    blocked = not layer.differentiable and any(top.needs_gradient for top in layer.tops)
    if blocked:
        raise ConfigError(
            f"layer '{layer.name}' ({layer.type}) has no backward, but a loss above it needs one; "
            "set propagate_down: false on the layer that reads it",
            layer.where,
        )
