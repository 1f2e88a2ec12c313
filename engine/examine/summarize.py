"""`engine summarize`: tabulates a net's layers in one phase, with their options, shapes, parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config import NetConfig
from engine.config.describe import options
from engine.data.source_shapes import SourceShapes
from engine.errors import shape_text
from engine.graph.build import build
from engine.graph.costs import layer_cost
from engine.graph.graph import Graph
from engine.layers.base import Layer
from engine.report.table import human, table

HEADER = ("layer", "type", "options", "output", "parameters", "lr, decay", "FLOPs", "%")


def net_graph(config: NetConfig, phase: int) -> Graph:
    """Returns the graph of a net to look at. Its data need not be there, and the code of its Python layers does not
    run: config.notes gets lines about what is unknown therefore. Raises ConfigErrors."""
    shapes_of = SourceShapes(config.message, phase, config.notes.append)
    graph = build(config, phase, shapes_of=shapes_of, to_look_at=True)
    for layer in graph.unshaped:
        if layer.type == "Python":
            config.notes.append(
                f"{layer.where}: layer '{layer.name}' (Python): its shapes are known to its author's code only, "
                "which is not run here; layers that read it are shown without"
            )
    return graph


def summarize(graph: Graph) -> str:
    """Returns a table with a line for each layer, and totals. FLOPs are those of a forward pass over the batch."""
    costs = {layer: layer_cost(layer) for layer in graph.layers if layer not in graph.unshaped}
    flops = sum(cost.flops for cost in costs.values())
    rows = []
    for layer in graph.layers:
        row = [layer.name, layer.type, ", ".join(options(layer.message))]
        if layer in costs:
            cost = costs[layer]
            row += [
                ", ".join(shape_text(shape) for _, shape in cost.tops),
                f"{cost.parameters:,}" if cost.parameters else "",
                "  ".join(_multipliers(layer)),
                human(cost.flops) if cost.flops else "",
                f"{100 * cost.flops / flops:.1f}" if cost.flops else "",
            ]
        else:
            row += ["?", "?", "", "?", ""]
        rows.append(row)
    parameters = sum(cost.parameters for cost in costs.values())
    total = ("total", f"{len(rows)} layers", "", "", f"{parameters:,}", "", human(flops), "")
    return table(HEADER, rows, "<<<<><>>", total)


def _multipliers(layer: Layer) -> Iterator[str]:
    """Yields "lr_mult, decay_mult" of each parameter of a layer, if one of them is not at its default."""
    params = [param for param in layer.params if not param.statistics]
    if any((param.lr_mult, param.decay_mult) != (1, 1) for param in params):
        for param in params:
            yield f"{param.lr_mult:g}, {param.decay_mult:g}"
