"""`engine summarize`: a net's layers in one phase, with their options, shapes, parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config import Config
from engine.examine.estimate import layer_costs
from engine.examine.source_shapes import SourceShapes
from engine.graph.build import Graph, build
from engine.layers.base import Layer
from engine.report.table import human, table
from engine.weights import shape_text

HEADER = ("layer", "type", "options", "output", "parameters", "lr, decay", "FLOPs", "%")
# Messages that say where data comes from, and not what the layer does.
_SOURCES = ("transform_param", "data_param", "image_data_param", "hdf5_data_param", "window_data_param", "include")


def net_graph(config: Config, phase: int, level: int = 0, stages: tuple | list = ()) -> Graph:
    """The graph of a net whose data need not be there. Raises ConfigErrors."""
    shapes_of = SourceShapes(phase, config.notes.append)
    return build(config, phase, level=level, stages=stages, shapes_of=shapes_of)


def summarize(graph: Graph) -> str:
    """A table with a line for each layer, and totals. FLOPs: of a forward pass over the batch."""
    costs = layer_costs(graph)
    flops = sum(cost.flops for cost in costs)
    rows = [
        (
            layer.name,
            layer.type,
            ", ".join(options(layer)),
            ", ".join(shape_text(shape) for _, shape in cost.tops),
            f"{cost.parameters:,}" if cost.parameters else "",
            "  ".join(_multipliers(layer)),
            human(cost.flops) if cost.flops else "",
            f"{100 * cost.flops / flops:.1f}" if cost.flops else "",
        )
        for layer, cost in zip(graph.layers, costs, strict=True)
    ]
    parameters = sum(cost.parameters for cost in costs)
    total = ("total", f"{len(rows)} layers", "", "", f"{parameters:,}", "", human(flops), "")
    return table(HEADER, rows, "<<<<><>>", total)


def options(layer: Layer) -> Iterator[str]:
    """What the file says of a layer besides its data, fillers and blobs: "num_output 64", "kernel_size 7"."""
    for field, message in layer.message.ListFields():
        if field.message_type is not None and field.has_presence and field.name not in _SOURCES:
            yield from _scalars(message)


def _scalars(message: Any) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            continue
        values = [value] if field.has_presence else list(value)
        if field.enum_type is not None:
            values = [field.enum_type.values_by_number[number].name for number in values]
        yield f"{field.name} {' '.join(_text(each) for each in values)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _multipliers(layer: Layer) -> Iterator[str]:
    """lr_mult, decay_mult of each parameter blob that is not at its default."""
    params = [param for param in layer.params if not param.statistics]
    if any((param.lr_mult, param.decay_mult) != (1, 1) for param in params):
        for param in params:
            yield f"{param.lr_mult:g}, {param.decay_mult:g}"
