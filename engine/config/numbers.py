"""Numbers in texts from outside: a digit string may be longer than Python reads, or of digits that are not ASCII."""

from __future__ import annotations

import re

_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)


def whole(text: str, low: int, high: int) -> int | None:
    """Returns the whole number of a text if it is in [low, high], else None."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    return value if value is not None and low <= value <= high else None


def position(text: str, count: int) -> int | None:
    """Returns the index that a text names among `count` items, or one past them; None for any other text."""
    return whole(text, 0, count)
