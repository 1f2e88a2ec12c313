"""Methods that an object lends to what it owns, without being kept alive by it: a cycle would be freed late, and all of
its memory with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """Calls a bound method. Raises ReferenceError once its object is gone."""
    found, name = weakref.WeakMethod(method), method.__qualname__

    def call(*args: P.args, **options: P.kwargs) -> T:
        bound = found()
        if bound is None:
            raise ReferenceError(f"{name}(): its object is gone")
        return bound(*args, **options)

    return call
