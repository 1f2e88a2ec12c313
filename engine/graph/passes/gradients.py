"""Which blobs need a gradient: something below them learns, and a loss lies above them. The rest of backward is
pruned.
"""

from __future__ import annotations

from engine.graph.graph import Graph
from engine.graph.passes.split import insert_split
from engine.layers.base import Blob, Layer
from engine.layers.split import Split


def mark_gradients(graph: Graph, gradients: bool) -> None:
    """Sets `needs_gradient` on every blob. With `force_backward` gradients also flow to inputs, and from every output.

    gradients: whether there is a backward. Raises ConfigError when a gradient would have to pass a layer that has none.
    """
    if not gradients:
        return
    wanted = _below(graph)
    ends = ends_of(graph)
    leads: set[Blob] = set(ends)  # to a loss
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
    """Blobs that depend on something that learns (or on an input, with force_backward), and those of which a layer asks
    for a gradient by `propagate_down: true`, as in Caffe."""
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
    """Tops with a loss_weight: it is their gradient, where the layer is no loss, whose op takes it for itself. Returns
    the layers that follow this one now."""
    added: list[Layer] = []
    if layer.is_loss:
        if layer.tops[0].needs_gradient and not layer.message.loss_weight:
            layer.loss_weights[0] = 0.0  # as in Caffe: what its reader sends is its gradient
        return added
    for number, (top, weight) in enumerate(zip(layer.tops, layer.loss_weights, strict=True)):
        if not weight or top.gradient_is_set:
            continue
        if top.needs_gradient:  # what its reader sends counts, too: the weight moves to a top of a Split
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
