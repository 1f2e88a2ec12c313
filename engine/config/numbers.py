"""Reads numbers in texts from outside, where int() and float() would take digits that are not ASCII, or raise for a
string of too many digits."""

from __future__ import annotations

import math
import re

_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)


def whole(text: str, low: int, high: int) -> int | None:
    """Returns the whole number of a text if it is in [low, high], else None."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    return value if value is not None and low <= value <= high else None


def position(text: str, count: int) -> int | None:
    """Returns the index that a text names among `count` items, or one past them; None for any other text."""
    return whole(text, 0, count)


def number(text: str) -> float | None:
    """Returns the decimal number of a text, None for any other text and for what is too large for a double."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None
