"""Layer types by name. A type registers itself in its own file; naming an unknown one lists the nearest."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from engine.config.dialects import ask_of_types, unknown_layer
from engine.config.suggestions import suggestion
from engine.errors import CODE, ConfigError

if TYPE_CHECKING:
    from engine.layers.base import Layer

LayerT = TypeVar("LayerT", bound="Layer")

_types: dict[str, type[Layer]] = {}

# What TensorRT's parser asks the program for that reads the net; the prototxt does not say what such a layer does.
_PLUGINS = ("IPlugin", "Plugin")


def register(*names: str) -> Callable[[type[LayerT]], type[LayerT]]:
    """Class decorator: `@register("Pooling")` makes the class the layer of that type (and of further, older names)."""

    def add(cls: type[LayerT]) -> type[LayerT]:
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


def layer_type(name: str, layer: str, where: str) -> type[Layer]:
    """The class for `type: name`. Raises ConfigError with the nearest known names."""
    types = layer_types()
    if name in types:
        return types[name]
    if name in _PLUGINS:
        raise ConfigError(
            f"layer '{layer}' ({name}): TensorRT's name for a layer that the program has which reads the net; put the "
            "layers, or the Python layer, there that compute the same",
            where,
            absent=CODE,
        )
    raise ConfigError(f"layer '{layer}': {_unknown_type(name)}", where)


def _unknown_type(name: str) -> str:
    """What is wrong with a type that is not here; "" for others."""
    types = layer_types()
    if name in types or name in _PLUGINS:
        return ""
    return f"unknown layer type '{name}'{unknown_layer(name) or suggestion(name, types)}"


ask_of_types(_unknown_type)
