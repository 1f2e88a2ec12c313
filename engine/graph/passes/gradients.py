"""Which blobs need a gradient: something below them learns, and a loss lies above them. The rest of backward is
pruned.
"""

from __future__ import annotations

from engine.graph.build import Graph
from engine.layers.base import Blob, Layer


def mark_gradients(graph: Graph, training: bool) -> None:
    """Sets `needs_gradient` on every blob. With `force_backward` gradients also flow to inputs, and from every output.

    Raises ConfigError when a gradient would have to pass a layer that has none.
    """
    if not training and not graph.force_backward:
        return
    wanted = _below(graph)
    ends = ends_of(graph)
    leads: set[Blob] = set(ends)  # to a loss
    for layer in reversed(graph.layers):
        if not (any(layer.loss_weights) or any(top in leads for top in layer.tops)):
            continue
        for i, blob in enumerate(layer.bottoms):
            if i in layer.constant_bottoms or not _propagates(layer, i):
                continue
            if layer.differentiable:
                leads.add(blob)
                blob.needs_gradient = blob in wanted
            elif blob in wanted and not graph.force_backward:
                raise layer.error("has no backward, but a loss needs one through it; set propagate_down: false")
    for layer in graph.layers:
        _mark_weighted_tops(layer, wanted)
    for blob in ends & wanted:  # gradients that Python sets
        blob.needs_gradient = blob.gradient_is_set = True


def ends_of(graph: Graph) -> set[Blob]:
    """Where, with `force_backward`, no layer sends a gradient, but Python may: outputs, and what is read only by layers
    without a backward or without tops."""
    if not graph.force_backward:
        return set()
    ends = set(graph.outputs)
    for layer in graph.layers:
        if not layer.differentiable or not layer.tops:
            ends.update(layer.bottoms)
    return ends


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
    return flags[i] if flags else True


def _mark_weighted_tops(layer: Layer, wanted: set[Blob]) -> None:
    """A top of a layer that is no loss, but has a loss_weight: that weight is its gradient."""
    if layer.is_loss:  # its op takes the weight, and nothing else, for the gradient of its top
        if any(top.needs_gradient for top in layer.tops):
            raise layer.error("is read by a layer that sends it a gradient, but backward must begin at a loss")
        return
    for top, weight in zip(layer.tops, layer.loss_weights, strict=False):
        if weight and top.needs_gradient:
            raise layer.error(
                f"top '{top.name}' has a loss_weight and is read by a layer that sends a gradient, too; "
                "read it through a layer of its own"
            )
        if weight and top in wanted:
            top.needs_gradient = top.gradient_is_set = True
