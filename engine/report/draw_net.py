"""`engine draw_net`: a picture of a net, laid out by the graphviz that pygraphviz carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from engine.config.describe import options
from engine.errors import EngineError, printable, shape_text
from engine.files import atomic_write
from engine.graph.build import Graph
from engine.layers.base import Blob

# Type -> colour; others are grey.
COLOURS = {
    **dict.fromkeys(("Convolution", "Deconvolution", "InnerProduct"), "#cfe2f3"),
    **dict.fromkeys(("Pooling", "SPP", "ROIPooling", "PSROIPooling"), "#fce5cd"),
    **dict.fromkeys(("Data", "ImageData", "HDF5Data", "Input", "DummyData", "MemoryData", "WindowData"), "#d9ead3"),
    **dict.fromkeys(("Concat", "Eltwise", "Slice", "Split"), "#ead1dc"),
}
LOSS, MEASURE, OTHER = "#f4cccc", "#fff2cc", "#eeeeee"
KINDS = (".png", ".svg", ".pdf", ".dot")


@dataclass(eq=False)
class Node:
    """A layer, with the in-place layers that follow it. lines: of its label."""

    lines: list[str]
    colour: str
    edges: list[tuple[Node, str]] = field(default_factory=list)  # to whom, and what of


def nodes_of(graph: Graph) -> list[Node]:
    """In the file's order."""
    made_by: dict[Blob, Node] = {}
    unknown = {top for layer in graph.unshaped for top in layer.tops}
    nodes = []
    for layer in graph.layers:
        label = f"{layer.name} ({layer.type})"
        if len(layer.bottoms) == 1 and [top.name for top in layer.tops] == [layer.bottoms[0].name]:
            node = made_by[layer.bottoms[0]]
            node.lines.append(f"+ {label}")
        else:
            said = ", ".join(options(layer.message))
            node = Node([label, said] if said else [label], _colour(layer.type))
            nodes.append(node)
            for bottom in layer.bottoms:
                shape = "" if bottom in unknown else f": {shape_text(bottom.shape)}"
                made_by[bottom].edges.append((node, f"{bottom.name}{shape}"))
        made_by.update((top, node) for top in layer.tops)
    return nodes


def _colour(layer_type: str) -> str:
    if layer_type.endswith("Loss"):
        return LOSS
    return COLOURS.get(layer_type, MEASURE if layer_type in ("Accuracy", "ArgMax", "Softmax") else OTHER)


def draw_net(graph: Graph, target: str, rankdir: str = "TB") -> None:
    """Writes a picture of a net.

    Args:
        target: the file, of one of the KINDS; a .dot is graphviz's language, and needs no graphviz.
        rankdir: TB (downwards) or LR.

    Raises:
        EngineError: target has another suffix, pygraphviz is not installed, or the file cannot be written.
    """
    suffix = Path(target).suffix
    if suffix not in KINDS:
        raise EngineError(f"cannot draw '{suffix or 'a name without a suffix'}'; known: {', '.join(KINDS)}", target)
    text = dot_text(graph.name, nodes_of(graph), rankdir)
    picture = text.encode() if suffix == ".dot" else _picture(text, suffix, target)
    with atomic_write(target) as file:
        file.write(picture)


def _picture(text: str, suffix: str, target: str) -> bytes:
    try:
        import pygraphviz
    except ImportError:
        message = "drawing needs pygraphviz: pip install engine[plot]; or name a .dot, and give it to graphviz's dot"
        raise EngineError(message, target) from None
    try:
        return cast(bytes, pygraphviz.AGraph(string=text).draw(format=suffix[1:], prog="dot"))
    except ValueError as error:  # DotError, too
        raise EngineError(f"graphviz cannot draw it: {error}", target) from None


def dot_text(title: str, nodes: list[Node], rankdir: str) -> str:
    """The net in graphviz's language."""
    number = {node: i for i, node in enumerate(nodes)}
    lines = [
        f"digraph {_quoted(title)} {{",
        f"  rankdir={rankdir};",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9, color="#666666"];',
    ]
    for node in nodes:
        lines.append(f"  n{number[node]} [label={_quoted(*node.lines)}, fillcolor={_quoted(node.colour)}];")
    for node in nodes:
        lines += [f"  n{number[node]} -> n{number[to]} [label={_quoted(what)}];" for to, what in node.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    """A string of graphviz's language; a drawing in SVG must not hold control characters."""
    escaped = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
