"""`engine draw_net`: draws a picture of a net, laid out by the graphviz that comes with pygraphviz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from engine.config.describe import options
from engine.errors import EngineError, printable, shape_text
from engine.files import atomic_write
from engine.graph.graph import Graph
from engine.report.log import warn

if TYPE_CHECKING:
    from engine import proto

# Type -> colour; others are grey.
COLOURS = {
    **dict.fromkeys(("Convolution", "Deconvolution", "InnerProduct"), "#cfe2f3"),
    **dict.fromkeys(("Pooling", "SPP", "ROIPooling", "PSROIPooling", "PSROIAlign", "ROIAlign", "RoIAlign"), "#fce5cd"),
    **dict.fromkeys(("Data", "ImageData", "HDF5Data", "Input", "DummyData", "MemoryData", "WindowData"), "#d9ead3"),
    **dict.fromkeys(("Concat", "Eltwise", "Slice", "Split"), "#ead1dc"),
}
LOSS, MEASURE, OTHER = "#f4cccc", "#fff2cc", "#eeeeee"
MOST_PIXELS = 32767  # of a side, which cairo can draw
PIXELS_PER_POINT = 96 / 72
KINDS = (".png", ".svg", ".pdf", ".dot")
EMPTY: Mapping[str, Sequence[str]] = MappingProxyType({})


@dataclass(eq=False)
class Node:
    """A layer, with the in-place layers that follow it."""

    lines: list[str]  # of its label
    colour: str
    edges: list[tuple[Node, str]] = field(default_factory=list)  # the nodes that read its tops, and the edges' labels


def nodes_of(layers: Iterable[proto.LayerParameter], shapes: Mapping[str, Sequence[str]] = EMPTY) -> list[Node]:
    """Returns the nodes of layers, in their order. shapes: those of the bottoms, as text, by the layer's name; "" for
    one that is not known."""
    made_by: dict[str, list[Node]] = {}  # several, where the layers are those of all phases
    nodes = []
    for layer in layers:
        label = f"{layer.name} ({layer.type})"
        makers = made_by.get(layer.bottom[0], []) if list(layer.bottom) == list(layer.top) != [] else []
        if len(layer.bottom) == len(makers) == 1:
            makers[0].lines.append(f"+ {label}")
            continue
        said = ", ".join(options(layer))
        node = Node([label, said] if said else [label], _colour(layer.type))
        nodes.append(node)
        for bottom, shape in zip_longest(layer.bottom, shapes.get(layer.name, ()), fillvalue=""):
            for maker in made_by.get(bottom, ()):
                maker.edges.append((node, f"{bottom}: {shape}" if shape else bottom))
        for top in layer.top:
            made_by[top] = [node] if top in layer.bottom else [*made_by.get(top, ()), node]
    return nodes


def _shapes(graph: Graph) -> dict[str, list[str]]:
    """Returns the shapes of each layer's bottoms, for nodes_of()."""
    unknown = {top for layer in graph.unshaped for top in layer.tops}
    return {
        layer.name: ["" if bottom in unknown else shape_text(bottom.shape) for bottom in layer.bottoms]
        for layer in graph.layers
    }


def _colour(layer_type: str) -> str:
    if layer_type.endswith("Loss"):
        return LOSS
    return COLOURS.get(layer_type, MEASURE if layer_type in ("Accuracy", "ArgMax", "Softmax") else OTHER)


def draw_net(graph: Graph, target: str, rankdir: str = "TB") -> None:
    """Writes a picture of a net that has been built. See draw_layers() for arguments and errors."""
    draw_layers(graph.name, [layer.message for layer in graph.layers], target, rankdir, _shapes(graph))


def draw_layers(
    name: str,
    layers: Iterable[proto.LayerParameter],
    target: str,
    rankdir: str = "TB",
    shapes: Mapping[str, Sequence[str]] = EMPTY,
) -> None:
    """Writes a picture of the layers of a net, which need not fit together.

    Args:
        shapes: of the bottoms, by the layer's name.
        target: the file, of one of the KINDS; a .dot is graphviz's language, and needs no graphviz.
        rankdir: TB (downwards) or LR.

    Raises:
        EngineError: target has another suffix, pygraphviz is not installed, or the file cannot be written.
    """
    suffix = Path(target).suffix
    if suffix not in KINDS:
        raise EngineError(f"cannot draw '{suffix or 'a name without a suffix'}'; known: {', '.join(KINDS)}", target)
    text = dot_text(name, nodes_of(layers, shapes), rankdir)
    picture = text.encode() if suffix == ".dot" else _picture(text, suffix, target)
    with atomic_write(target) as file:
        file.write(picture)


def _picture(text: str, suffix: str, target: str) -> bytes:
    try:
        import pygraphviz
    except ImportError:
        way = "pip install prototxt-engine[plot]; or name a .dot, and give it to graphviz's dot"
        raise EngineError(f"drawing needs pygraphviz: {way}", target) from None
    try:
        graph = pygraphviz.AGraph(string=text)
        graph.layout(prog="dot")
        if suffix == ".png":
            _warn_of_size(str(graph.graph_attr["bb"]), target)
        return cast(bytes, graph.draw(format=suffix[1:]))
    except ValueError as error:  # DotError, too
        raise EngineError(f"graphviz cannot draw it: {error}", target) from None


def _warn_of_size(box: str, target: str) -> None:
    """Warns if a .png is scaled down until its text is hard to read. box: left, bottom, right and top of the drawing,
    in points."""
    left, bottom, right, top = map(float, box.split(","))
    side = max(right - left, top - bottom) * PIXELS_PER_POINT
    if side > MOST_PIXELS:
        warn(
            f"{target}: the net takes {side:.0f} pixels, a .png at most {MOST_PIXELS}: at "
            f"{100 * MOST_PIXELS / side:.0f}% of its size, text is hard to read. A .svg or .pdf has no limit"
        )


def dot_text(title: str, nodes: list[Node], rankdir: str) -> str:
    """Returns the net in graphviz's language."""
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
        lines += [f"  n{number[node]} -> n{number[to]} [label={_quoted(_apart(what))}];" for to, what in node.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _apart(text: str) -> str:
    """Returns an edge's label with no-break spaces around it, or graphviz would draw it on the line itself."""
    return f"\u00a0\u00a0{text}\u00a0\u00a0"


def _quoted(*lines: str) -> str:
    """Returns lines as one string of graphviz's language. Control characters are escaped: an SVG must not hold them."""
    escaped = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
