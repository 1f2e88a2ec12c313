"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from engine.errors import printable


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], align: str = "", total: Sequence[object] | None = None
) -> str:
    """Returns lines of aligned columns, with a rule below the header. What a terminal would obey is escaped.

    Args:
        align: "<" or ">" for each column (default: left for the first, else right).
        total: a last row below a rule of its own.
    """
    lines = [_texts(header), *map(_texts, rows), *([_texts(total)] if total else [])]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    sides = align or "<" + ">" * (len(header) - 1)
    texts = ["  ".join(map(_padded, line, widths, sides)).rstrip() for line in lines]
    rule = "  ".join("-" * width for width in widths).rstrip()
    return "\n".join([texts[0], rule, *texts[1 : 1 + len(rows)], *([rule, texts[-1]] if total else [])])


def _texts(row: Sequence[object]) -> list[str]:
    return [printable(str(cell)).strip() for cell in row]


def _padded(text: str, width: int, side: str) -> str:
    blanks = " " * (width - _width(text))
    return text + blanks if side == "<" else blanks + text


def _width(text: str) -> int:
    """Returns how many columns of a terminal a text fills: an ideograph two, an accent of its own none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def duration(seconds: float) -> str:
    """7384 -> "2 h 3 min", 125 -> "2 min 5 s", 9.87 -> "9.9 s"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def human(count: float, unit: str = "") -> str:
    """25557032 -> "25.56 M"; with a unit, "25.56 MB"."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.2f} {prefix}{unit}"
    return f"{count:g} {unit}".rstrip()
