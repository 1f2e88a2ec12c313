"""Functions by operator: what makes layers of a node."""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.net_maker import Padded

# A constant, a blob, or a blob with zeros around it that nothing has made yet.
Value: TypeAlias = "np.ndarray | Blob | Padded"
# (reader, node, the values that the node reads; None for one left out) -> the values that it makes.
Import: TypeAlias = Callable[..., "Value | Sequence[Value]"]

MOST_VALUES = 1 << 26  # of a constant that is computed
_MOST_IN_ALL = 1 << 28  # of a model, besides four times what is in its file
_MOST_MULTIPLY_ADDS = 1 << 32  # of a model's products of constants

_imports: dict[str, Import] = {}


class Unsupported(Exception):
    """Raised by the function of an operator for what no layer does; says in a few words what that is."""


class Budget:
    """How many values the constants of one model may become: computed, with zeros around them, read again and again."""

    def __init__(self):
        self._left, self._multiply_adds = _MOST_IN_ALL, _MOST_MULTIPLY_ADDS

    def add(self, given: int) -> None:
        """So many more are in its file, or beside it."""
        self._left += 4 * given

    def take(self, count: int, given: int = 0) -> None:
        """For one constant, made of `given` values. Raises Unsupported where that is too much."""
        if count > max(MOST_VALUES, given):
            raise Unsupported("a constant of too many values")
        self._left -= count
        if self._left < 0:
            raise Unsupported("constants of too many values in all")

    def multiply(self, count: int) -> None:
        """For a product of constants of so many multiply-adds. Raises Unsupported where that is too much."""
        self._multiply_adds -= count
        if self._multiply_adds < 0:
            raise Unsupported("products of constants of too many multiply-adds in all")


def surrounded(budget: Budget, array: np.ndarray, widths: Sequence[tuple[int, int]]) -> np.ndarray:
    """A constant with so many zeros before and behind along each axis. Raises Unsupported where they are too many."""
    if not any(map(any, widths)):
        return array
    sides = zip(array.shape, widths, strict=True)
    budget.take(math.prod(size + before + behind for size, (before, behind) in sides), array.size)
    return np.pad(array, widths)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the first. Raises ValueError where there is none of this number."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of {rank}")
    return int(axis) % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """The same of several, which differ."""
    found = [axis_of(int(axis), rank) for axis in axes]
    if len(set(found)) < len(found):
        raise ValueError(f"axes {found}, one of them twice")
    return found


def imports(*operators: str) -> Callable[[Import], Import]:
    """Decorator: the function reads nodes of these operators."""

    def add(function: Import) -> Import:
        for name in operators:
            _imports[name] = function
        return function

    return add


@functools.cache
def _import_all() -> None:
    package: Any = importlib.import_module("engine.exchange.from_onnx")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"engine.exchange.from_onnx.{module.name}")


def import_of(operator: str) -> Import | None:
    """The function for an operator; None where there is none."""
    _import_all()
    return _imports.get(operator)


def imported_operators() -> list[str]:
    """All operators that have a function, sorted."""
    _import_all()
    return sorted(_imports)
