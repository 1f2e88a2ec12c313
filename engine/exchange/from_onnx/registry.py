"""Functions by operator: what makes layers of a node."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.net_maker import Padded

# A constant, a blob, or a blob with zeros around it that nothing has made yet.
Value: TypeAlias = "np.ndarray | Blob | Padded"
# (reader, node, the values that the node reads; None for one left out) -> the values that it makes.
Import: TypeAlias = Callable[..., "Value | Sequence[Value]"]

_imports: dict[str, Import] = {}


class Unsupported(Exception):
    """Raised by the function of an operator for what no layer does; says in a few words what that is."""


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
