"""Layer types by name. A type registers itself in its own file; naming an unknown one lists the nearest."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.layers.base import Layer

_types: dict[str, type[Layer]] = {}


def register(*names: str):
    """Class decorator: `@register("Pooling")` makes the class the layer of that type (and of further, older names)."""

    def add(cls: type[Layer]) -> type[Layer]:
        for name in names:
            _types[name] = cls
        return cls

    return add


@functools.cache
def _import_all() -> None:
    package = importlib.import_module("engine.layers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"engine.layers.{module.name}")


def layer_types() -> dict[str, type[Layer]]:
    """All known layer types by name, from every module of engine.layers."""
    _import_all()
    return _types


@functools.cache
def _import_all() -> None:
    package = importlib.import_module("engine.layers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"engine.layers.{module.name}")


def layer_type(name: str, layer: str, where: str) -> type[Layer]:
    """The class for `type: name`. Raises ConfigError with the nearest known names."""
    types = layer_types()
    if name in types:
        return types[name]
    near = difflib.get_close_matches(name, types, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known types: {', '.join(sorted(types))}"
    raise ConfigError(f"layer '{layer}': unknown layer type '{name}'; {hint}", where)
