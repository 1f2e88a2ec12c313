"""Registers for each layer type the function that writes such a layer with operators of ONNX."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# (writer, layer, the values of its bottoms) -> the values of its tops, or for one top its value. The layer is of the
# class that is registered for its type.
Export: TypeAlias = Callable[..., "str | Sequence[str]"]

_exports: dict[str, Export] = {}


class Inexpressible(Exception):
    """Raised by the function of a layer type for settings that ONNX has no operator for. The message names these."""


def exports(*types: str) -> Callable[[Export], Export]:
    """Returns a decorator that registers a function for these layer types."""

    def add(function: Export) -> Export:
        for name in types:
            _exports[name] = function
        return function

    return add


@functools.cache
def _import_all() -> None:
    package: Any = importlib.import_module("engine.exchange.to_onnx")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"engine.exchange.to_onnx.{module.name}")


def export_of(layer_type: str) -> Export | None:
    """Returns the function for a layer type; None if there is none."""
    _import_all()
    return _exports.get(layer_type)


def exported_types() -> list[str]:
    """Returns all layer types that have a function, sorted."""
    _import_all()
    return sorted(_exports)
