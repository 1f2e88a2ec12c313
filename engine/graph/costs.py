"""The costs of a net by its graph alone: parameters, floating-point operations, memory. No kernel is built or run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.graph.graph import Graph
from engine.graph.passes.memory_plan import Lifetime, plan
from engine.layers.base import Blob, Layer, Parameter
from engine.layers.data import Data

FLOAT_BYTES = 4
VIEWS = ("Split", "Flatten", "Reshape")  # types whose tops are views of their bottom


@dataclass(frozen=True)
class LayerCost:
    """The costs of one layer of the file. flops: of a forward pass over the batch. bytes: of its tops and
    parameters."""

    name: str
    type: str
    where: str
    tops: list[tuple[str, tuple[int, ...]]]
    parameters: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Memory:
    """The memory of one rank, in bytes, without the kernels' scratch and padding.

    activations: every blob, and in training every gradient, each in memory of its own. planned: the same by the memory
    plan, in which those that are alive at different steps share memory. ring: the batches of data layers, those read
    ahead and the one in use; tops of data layers count here alone."""

    parameters: int
    gradients: int
    activations: int
    planned: int
    ring: int = 0


def layer_costs(graph: Graph) -> list[LayerCost]:
    """Returns the costs of all layers, in the file's order. graph: as built, before any pass. A shared parameter counts
    in the first layer that has it."""
    return [layer_cost(layer) for layer in graph.layers]


def layer_cost(layer: Layer) -> LayerCost:
    """Returns the costs of one layer: see layer_costs()."""
    own = sum(parameter.count for parameter in layer.params if parameter.owner is None)
    in_place = set(layer.message.bottom)
    values = sum(math.prod(top.shape) for top in layer.tops if top.name not in in_place)
    return LayerCost(
        layer.name,
        layer.type,
        layer.where,
        [(top.name, tuple(top.shape)) for top in layer.tops],
        own,
        layer.flops(),
        FLOAT_BYTES * (values + own),
    )


def memory(graph: Graph) -> Memory:
    """Returns the memory that a net takes. graph: after its passes, at least insert_splits() and mark_gradients()."""
    training = graph.trains
    owners: dict[Parameter, None] = dict.fromkeys(
        parameter.owner or parameter for layer in graph.layers for parameter in layer.params
    )
    lifetimes = _lifetimes(graph, training)
    return Memory(
        FLOAT_BYTES * sum(parameter.count for parameter in owners),
        FLOAT_BYTES * sum(parameter.count for parameter in owners if training and parameter.learnable),
        sum(life.bytes for life in lifetimes),
        plan(lifetimes)[1],
        sum(_ring_bytes(layer) for layer in graph.layers if isinstance(layer, Data)),
    )


def _ring_bytes(layer: Data) -> int:
    ahead = 0 if layer.type == "MemoryData" else max(1, layer.message.data_param.prefetch)
    return FLOAT_BYTES * (ahead + 1) * sum(math.prod(top.shape) for top in layer.tops)


def _lifetimes(graph: Graph, training: bool) -> list[Lifetime]:
    """Returns the lifetimes of values and gradients.

    Of n layers, layer i runs forward at step i and backward at step 2n - 1 - i, in which it is taken to read its
    bottoms and tops again. Tops of layers that work in place or give views have no memory of their own."""
    count = len(graph.layers)
    value_of, gradient_of = _Shared(), _Shared()
    values: dict[Blob, list[int]] = {}  # steps at which they are needed
    gradients: dict[Blob, list[int]] = {}
    for i, layer in enumerate(graph.layers):
        for top in layer.tops:
            in_place = top.name in layer.message.bottom and layer.type != "Split"
            if layer.bottoms and (in_place or layer.type in VIEWS):
                value_of.join(top, layer.bottoms[0])
                if layer.type != "Split":  # the gradient of a Split's bottom is a sum, in memory of its own
                    gradient_of.join(top, layer.bottoms[0])
        backward = training and _runs_backward(layer)
        for blob in (*layer.bottoms, *layer.tops):
            values.setdefault(value_of[blob], []).extend([i, 2 * count - 1 - i] if backward else [i])
            if blob.needs_gradient and backward:
                gradients.setdefault(gradient_of[blob], []).append(2 * count - 1 - i)
    rings = {top for layer in graph.layers if isinstance(layer, Data) for top in layer.tops}
    alive = [*(each for each in values.items() if each[0] not in rings), *gradients.items()]
    return [Lifetime(FLOAT_BYTES * math.prod(blob.shape), ((min(steps), max(steps)),)) for blob, steps in alive]


class _Shared(dict[Blob, Blob]):
    """Blob -> the first of the blobs that share its memory; itself, if there is no other."""

    def __missing__(self, blob: Blob) -> Blob:
        return blob

    def join(self, blob: Blob, first: Blob) -> None:
        self[blob] = self[first]


def _runs_backward(layer: Layer) -> bool:
    sends = any(blob.needs_gradient and not blob.gradient_is_set for blob in layer.bottoms)
    return sends or layer.learns
