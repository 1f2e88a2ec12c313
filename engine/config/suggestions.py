"""Suggestions for an unknown name: the nearest known one, else all known ones if they are few."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FEW = 12


def suggestion(name: str, known: Iterable[str]) -> str:
    """A tail for an error message, such as "; did you mean 'max_iter'?" or "; known: LMDB", or ""."""
    known = sorted(set(known))
    lower = {candidate.lower(): candidate for candidate in reversed(known)}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{lower[near[0]]}'?"
    return f"; known: {', '.join(known)}" if known and len(known) <= _FEW else ""
