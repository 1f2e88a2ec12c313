"""Marks the blobs that need a gradient: those between something that learns and a loss. Ops compute no others."""

from __future__ import annotations

from engine.graph.graph import Graph
from engine.graph.passes.split import insert_split
from engine.layers.base import Blob, Layer
from engine.layers.split import Split


def mark_gradients(graph: Graph, gradients: bool) -> None:
    """Sets `needs_gradient` of every blob. With `force_backward` gradients also flow to inputs, and from every output.

    gradients: whether there is a backward. Raises ConfigError if a gradient would have to pass a layer without a
    backward.
    """
    if not gradients:
        return
    wanted = _below(graph)
    ends = ends_of(graph)
    leads: set[Blob] = set(ends)  # blobs that lead to a loss
    for layer in reversed(graph.layers):
        weighted = zip(layer.tops, layer.loss_weights, strict=True)
        senders = [number for number, (top, weight) in enumerate(weighted) if weight or top in leads]
        reached = {i for number in senders for i in layer.reached_from(number)}
        for i, blob in enumerate(layer.bottoms):
            if i not in reached or not layer.propagates(i):
                continue
            if layer.differentiable:
                leads.add(blob)
                blob.needs_gradient = blob in wanted
            elif blob in wanted and not graph.force_backward:
                raise layer.error("has no backward, but a loss needs one through it; set propagate_down: false")
    layers = []
    for layer in graph.layers:
        layers += [layer, *_mark_weighted_tops(graph, layer, wanted)]
    graph.layers = layers
    for blob in ends & wanted:  # Python may set their gradients
        blob.needs_gradient = blob.gradient_is_set = True


def ends_of(graph: Graph) -> set[Blob]:
    """Returns the blobs whose gradients, with `force_backward`, no layer writes but Python may: outputs, and bottoms of
    layers without a backward or without tops."""
    if not graph.force_backward:
        return set()
    ends = set(graph.outputs)
    for layer in graph.layers:
        if not layer.differentiable or not layer.tops:
            ends.update(layer.bottoms)
    return ends


def _below(graph: Graph) -> set[Blob]:
    """Returns the blobs that depend on something that learns (with force_backward also on an input), and those for
    which a layer asks for a gradient by `propagate_down: true`, as in Caffe."""
    wanted: set[Blob] = set()
    for layer in graph.layers:
        if not layer.differentiable:
            continue
        inner = [i for i in range(len(layer.bottoms)) if layer.propagates(i)]
        if layer.message.propagate_down:
            wanted.update(layer.bottoms[i] for i in inner)
        for number, top in enumerate(layer.tops):
            reached = layer.reached_from(number)
            passes = any(layer.bottoms[i] in wanted for i in inner if i in reached)
            learns = layer.learns and (reached or not layer.bottoms)
            if passes or learns or (graph.force_backward and not layer.bottoms):
                wanted.add(top)
    return wanted


def _mark_weighted_tops(graph: Graph, layer: Layer, wanted: set[Blob]) -> list[Layer]:
    """Makes loss_weight the gradient of a layer's top, if the layer is no loss: the op of a loss reads it by itself.
    Returns the Splits that were added behind the layer."""
    added: list[Layer] = []
    if layer.is_loss:
        if layer.tops[0].needs_gradient and not layer.message.loss_weight:
            layer.loss_weights[0] = 0.0  # as in Caffe: its gradient is what its reader writes
        return added
    for number, (top, weight) in enumerate(zip(layer.tops, layer.loss_weights, strict=True)):
        if not weight or top.gradient_is_set:
            continue
        if top.needs_gradient:  # a reader writes a gradient, too: a Split adds both, and has the weight
            (reader,) = graph.readers()[top]
            if isinstance(reader, Split) and reader.inserted:
                split = reader
            else:
                split = insert_split(layer, top, [(reader, reader.bottoms.index(top))])
                split.tops[0].needs_gradient = True
                added.append(split)
            split.message.top.append(f"{split.name}_{len(split.tops)}")
            split.tops.append(Blob(split.message.top[-1], top.shape, needs_gradient=True, gradient_is_set=True))
            split.loss_weights.append(weight)
            layer.loss_weights[number] = 0.0
        elif top in wanted:
            top.needs_gradient = top.gradient_is_set = True
    return added
