"""Writes plain text tables (laid out by tabulate), durations and large numbers."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import printable


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], align: str = "", total: Sequence[object] | None = None
) -> str:
    """Returns lines of aligned columns, with a rule below the header. Control characters are escaped.

    Args:
        align: "<" or ">" for each column (default: left for the first, else right).
        total: a last row below a rule of its own.
    """
    import tabulate

    rule, row = tabulate.Line("", "-", "  ", ""), tabulate.DataRow("", "  ", "")
    style = tabulate.TableFormat(None, rule, None, None, headerrow=row, datarow=row, padding=0, with_header_hide=None)
    # The header is a row like others: tabulate makes a column wider than its header.
    lines: list[Sequence[str]] = [_texts(header), tabulate.SEPARATING_LINE, *map(_texts, rows)]
    if total:
        lines += [tabulate.SEPARATING_LINE, _texts(total)]
    sides = [{"<": "left", ">": "right"}[side] for side in align or "<" + ">" * (len(header) - 1)]
    return tabulate.tabulate(lines, tablefmt=style, colalign=sides, disable_numparse=True)


def _texts(row: Sequence[object]) -> list[str]:
    return [printable(str(cell)) for cell in row]


def duration(seconds: float) -> str:
    """Returns "2 h 3 min" for 7384, "2 min 5 s" for 125, "9.9 s" for 9.87."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def human(count: float, unit: str = "") -> str:
    """Returns "25.56 M" for 25557032; with the unit "B", "25.56 MB"."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.2f} {prefix}{unit}"
    return f"{count:g} {unit}".rstrip()
