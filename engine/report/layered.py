"""A plain layered drawing of an acyclic graph as an SVG, for where graphviz is not installed.

Each node lies one rank behind the last of those that it reads; edges that cross ranks get a place in each of them; a
few sweeps move every node to the middle of its neighbours (Sugiyama et al., 1981).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from engine.report.draw_net import Node

CHARACTER, LINE, GAP, MARGIN, SWEEPS = 6.2, 15, 24, 20, 8


@dataclass(eq=False)
class _Place:
    """A node, or (node: None) where a long edge passes a rank. across: its middle along the rank; size: along it."""

    node: Node | None
    rank: int
    size: float
    depth: float  # across the rank
    across: float = 0.0
    before: list[_Place] = field(default_factory=list)
    after: list[_Place] = field(default_factory=list)


def draw(title: str, nodes: list[Node], rankdir: str = "TB") -> str:
    """nodes: every node before those that its edges lead to. rankdir: TB (downwards) or LR."""
    places, paths = _places(nodes, rankdir == "LR")
    ranks: list[list[_Place]] = [[] for _ in range(1 + max(place.rank for place in places))]
    for place in places:
        ranks[place.rank].append(place)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else ranks[::-1]:
            _arrange(rank, [place.before if down else place.after for place in rank])
    tops, total = [], MARGIN + LINE * 2
    for rank in ranks:
        tops.append(total)
        total += max(place.depth for place in rank) + 2 * GAP
    low = min(place.across - place.size / 2 for place in places) - MARGIN
    high = max(place.across + place.size / 2 for place in places) + MARGIN
    for place in places:
        place.across -= low

    def at(place: _Place, along: float) -> tuple[float, float]:
        point = place.across, tops[place.rank] + along
        return point[::-1] if rankdir == "LR" else point

    size = (total, high - low)[:: 1 if rankdir == "LR" else -1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
    ]
    parts += [_edge([at(path[0], path[0].depth), *(at(p, 0) for p in path[1:])], what) for path, what in paths]
    parts += [_box(place, at(place, place.depth / 2), rankdir == "LR") for place in places if place.node]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(nodes: list[Node], sideways: bool) -> tuple[list[_Place], list[tuple[list[_Place], str]]]:
    """All places, and the path of every edge through them with what it carries."""
    of: dict[Node, _Place] = {}
    for node in nodes:
        size, depth = max(map(len, node.lines)) * CHARACTER + 16, len(node.lines) * LINE + 10
        of[node] = _Place(node, 0, *((depth, size) if sideways else (size, depth)))
    for node in nodes:
        for to, _ in node.edges:
            of[to].rank = max(of[to].rank, of[node].rank + 1)
    places, paths = list(of.values()), []
    for node in nodes:
        for to, what in node.edges:
            path = [of[node]]
            path += [_Place(None, rank, GAP / 2, 0) for rank in range(of[node].rank + 1, of[to].rank)]
            places += path[1:]
            path.append(of[to])
            for a, b in itertools.pairwise(path):
                a.after.append(b)
                b.before.append(a)
            paths.append((path, what))
    return places, paths


def _arrange(rank: list[_Place], neighbours: list[list[_Place]]) -> None:
    """Orders a rank by the middle of each place's neighbours, and puts each as near to it as the others allow."""
    wanted = {
        place: sum(n.across for n in near) / len(near) if near else place.across
        for place, near in zip(rank, neighbours, strict=True)
    }
    rank.sort(key=wanted.__getitem__)
    edge = float("-inf")
    for place in rank:
        place.across = max(wanted[place], edge + place.size / 2)
        edge = place.across + place.size / 2 + GAP
    shift = sum(wanted[place] - place.across for place in rank) / len(rank)
    for place in rank:
        place.across += shift


def _edge(points: list[tuple[float, float]], what: str) -> str:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    (x, y), (x0, y0) = points[-1], points[-2]
    length = max(1e-6, ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5)
    dx, dy = 6 * (x - x0) / length, 6 * (y - y0) / length
    head = f"{x:.1f},{y:.1f} {x - dx - dy / 2:.1f},{y - dy + dx / 2:.1f} {x - dx + dy / 2:.1f},{y - dy - dx / 2:.1f}"
    middle = (points[0][0] + points[1][0]) / 2 + 4, (points[0][1] + points[1][1]) / 2
    return (
        f'<path d="{path}" fill="none" stroke="#666"/><polygon points="{head}" fill="#666"/>'
        f'<text x="{middle[0]:.1f}" y="{middle[1]:.1f}" font-size="9" fill="#666">{escape(what)}</text>'
    )


def _box(place: _Place, middle: tuple[float, float], sideways: bool) -> str:
    width, height = (place.depth, place.size) if sideways else (place.size, place.depth)
    x, y = middle[0] - width / 2, middle[1] - height / 2
    lines = "".join(
        f'<text x="{middle[0]:.1f}" y="{y + LINE * (i + 1):.1f}" text-anchor="middle">{escape(line)}</text>'
        for i, line in enumerate(place.node.lines)
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{place.node.colour}" '
        f'stroke="#444"/>{lines}'
    )
