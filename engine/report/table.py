"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], align: str = "", total: Sequence[object] | None = None
) -> str:
    """Lines of aligned columns. align: "<" or ">" for each column (default: left for the first, else right); `total` is
    a last row below a rule."""
    align = align or "<" + ">" * (len(header) - 1)
    cells = [[str(cell) for cell in row] for row in [header, *rows, *([total] if total else [])]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    lines = [line(cells[0]), rule, *map(line, cells[1 : len(rows) + 1])]
    return "\n".join([*lines, rule, line(cells[-1])] if total else lines)


def human(count: float, unit: str = "") -> str:
    """25557032 -> "25.56 M"; with a unit, "25.56 MB"."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.2f} {prefix}{unit}"
    return f"{count:g} {unit}".rstrip()
