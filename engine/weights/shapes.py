"""Checks shapes that files name, before arrays are made of them: a blob cannot have any shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from engine.errors import shape_text

MOST_AXES = 32  # as in Caffe
_LIMIT = 2**31  # of an axis and of the number of values, as in Caffe


def checked_shape(dims: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape if a blob can have it. Raises ValueError, which says why it cannot."""
    if len(dims) > MOST_AXES:
        raise ValueError(f"a shape of {len(dims)} axes, expected at most {MOST_AXES}")
    # With an axis of 0 there are no values, but NumPy multiplies the other axes all the same.
    if not all(0 <= each < _LIMIT for each in dims) or prod(each for each in dims if each) >= _LIMIT:
        raise ValueError(f"the shape {shape_text(dims)}, expected no negative axis and fewer than 2^31 values")
    return tuple(int(each) for each in dims)
