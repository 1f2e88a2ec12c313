"""Lets an object lend its methods to what it owns without a cycle of references: Python frees cycles late, and all of
their memory with them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that calls a bound method and does not keep its object alive. It raises ReferenceError once
    the object is gone."""
    found, name = weakref.WeakMethod(method), method.__qualname__

    def call(*args: P.args, **options: P.kwargs) -> T:
        bound = found()
        if bound is None:
            raise ReferenceError(f"{name}(): its object is gone")
        return bound(*args, **options)

    return call
