"""Registers for each operator of ONNX the function that makes layers of its nodes."""

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

# An input or output of a node: a constant, a blob, or a blob with padding that no layer has added yet.
Value: TypeAlias = "np.ndarray | Blob | Padded"
# (reader, node, the node's inputs, None for one that is left out) -> the node's outputs.
Import: TypeAlias = Callable[..., "Value | Sequence[Value]"]

MOST_VALUES = 1 << 26  # limit of one constant that is computed
_MOST_IN_ALL = 1 << 28  # limit of all constants of a model, besides four times as many values as are in its file
_MOST_MULTIPLY_ADDS = 1 << 32  # limit of all products of constants of a model

_imports: dict[str, Import] = {}


class Unsupported(Exception):
    """Raised by the function of an operator for what no layer can do. The message names that in a few words."""


class Budget:
    """How much may still be computed for one model: values of constants, and multiply-adds of their products.

    It counts constants that are computed, padded with zeros, or copied into a layer, as often as that happens.
    """

    def __init__(self):
        self._left, self._multiply_adds = _MOST_IN_ALL, _MOST_MULTIPLY_ADDS

    def add(self, given: int) -> None:
        """Enlarges the budget for `given` values that the model's files have."""
        self._left += 4 * given

    def take(self, count: int, given: int = 0) -> None:
        """Takes the `count` values of one constant. Raises Unsupported if the constant is too large or too few are
        left.

        Args:
            given: the number of values it is made of; it may always have as many.
        """
        if count > max(MOST_VALUES, given):
            raise Unsupported("a constant of too many values")
        self._left -= count
        if self._left < 0:
            raise Unsupported("constants of too many values in all")

    def multiply(self, count: int) -> None:
        """Takes the `count` multiply-adds of a product of constants. Raises Unsupported if too few are left."""
        self._multiply_adds -= count
        if self._multiply_adds < 0:
            raise Unsupported("products of constants of too many multiply-adds in all")


def surrounded(budget: Budget, array: np.ndarray, widths: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns a constant padded with zeros; widths: how many before and behind, for each axis. Raises Unsupported if
    the budget does not allow it."""
    if not any(map(any, widths)):
        return array
    sides = zip(array.shape, widths, strict=True)
    budget.take(math.prod(size + before + behind for size, (before, behind) in sides), array.size)
    return np.pad(array, widths)


def axis_of(axis: int, rank: int) -> int:
    """Returns an axis, which may be negative, as a number from 0 on. Raises ValueError if a blob of `rank` axes does
    not have it."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of {rank}")
    return int(axis) % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Returns several axes as axis_of() does. Raises ValueError also if one is there twice."""
    found = [axis_of(int(axis), rank) for axis in axes]
    if len(set(found)) < len(found):
        raise ValueError(f"axes {found}, one of them twice")
    return found


def imports(*operators: str) -> Callable[[Import], Import]:
    """Returns a decorator that registers a function for these operators."""

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
    """Returns the function for an operator; None if there is none."""
    _import_all()
    return _imports.get(operator)


def imported_operators() -> list[str]:
    """Returns all operators that have a function, sorted."""
    _import_all()
    return sorted(_imports)
