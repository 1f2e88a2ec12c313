"""Curves as an SVG, for where matplotlib is not installed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from engine.report.plot import Panel, Series

WIDTH, PANEL_HEIGHT = 900, 270
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 24, 36  # margins of a panel
TITLE = 36
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf")


def draw(title: str, panels: list[Panel]) -> str:
    """The panels below each other, over one axis of iterations."""
    xs = [x for panel in panels for series in panel.series for x, _ in series.finite()]
    x_range = _widened(min(xs), max(xs))
    height = TITLE + PANEL_HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(WIDTH / 2, 24, title, "middle", 16),
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {TITLE + number * PANEL_HEIGHT})">', *_panel(panel, x_range), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, x_range: tuple[float, float]) -> list[str]:
    ys = [y for series in panel.series for _, y in series.finite()]
    y_range = _widened(min(ys), max(ys))
    right, bottom = WIDTH - RIGHT, PANEL_HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return LEFT + across * (right - LEFT), bottom - up * (bottom - TOP)

    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#888"/>']
    for tick in ticks(*y_range, 6):
        y = at(x_range[0], tick)[1]
        parts += [_line(LEFT, y, right, y), _text(LEFT - 6, y + 4, f"{tick:g}", "end")]
    for tick in ticks(*x_range, 8):
        x = at(tick, y_range[0])[0]
        parts += [_line(x, TOP, x, bottom), _text(x, bottom + 16, f"{tick:g}", "middle")]
    upright = f'transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle"'
    parts += [
        f"<text {upright}>{escape(panel.title)}</text>",
        _text((LEFT + right) / 2, bottom + 32, "iteration", "middle"),
    ]
    for number, series in enumerate(panel.series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _curve(series, at, colour)
        x = LEFT + 200 * number  # the legend stands above the panel, where no curve can hide it
        parts += [_line(x, TOP - 11, x + 20, TOP - 11, colour, 2), _text(x + 26, TOP - 7, series.name)]
    return parts


def _curve(series: Series, at, colour: str) -> list[str]:
    points = [at(x, y) for x, y in series.finite()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>']
    if series.marked or len(points) == 1:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    return parts


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` + 1 round numbers in [low, high], 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _widened(low: float, high: float) -> tuple[float, float]:
    """The range with a little air, never empty."""
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd", width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
