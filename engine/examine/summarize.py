"""`engine summarize`: a net's layers in one phase, with their options, shapes, parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config import NetConfig
from engine.config.describe import options
from engine.data.source_shapes import SourceShapes
from engine.errors import shape_text
from engine.graph.build import Graph, build
from engine.graph.costs import layer_costs
from engine.layers.base import Layer
from engine.report.table import human, table

HEADER = ("layer", "type", "options", "output", "parameters", "lr, decay", "FLOPs", "%")


def net_graph(config: NetConfig, phase: int, level: int = 0, stages: tuple | list = ()) -> Graph:
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
            ", ".join(options(layer.message)),
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


def _multipliers(layer: Layer) -> Iterator[str]:
    """lr_mult, decay_mult of each parameter blob that is not at its default."""
    params = [param for param in layer.params if not param.statistics]
    if any((param.lr_mult, param.decay_mult) != (1, 1) for param in params):
        for param in params:
            yield f"{param.lr_mult:g}, {param.decay_mult:g}"
