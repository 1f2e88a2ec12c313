"""The layer types by name. A type registers itself in its own file. The error for an unknown type lists the nearest."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from engine.config.dialects import set_type_check, unknown_layer
from engine.config.suggestions import suggestion
from engine.errors import CODE, ConfigError

if TYPE_CHECKING:
    from engine.layers.base import Layer

LayerT = TypeVar("LayerT", bound="Layer")

_types: dict[str, type[Layer]] = {}

# The types of layers that TensorRT's parser takes from the program that reads the net: no prototxt says what they do.
_PLUGINS = ("IPlugin", "Plugin")


def register(*names: str) -> Callable[[type[LayerT]], type[LayerT]]:
    """Returns a class decorator: `@register("Pooling")` makes a class the layer of that type, and of further names."""

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
    """Returns all layer types by name. The first call imports every module of engine.layers."""
    _import_all()
    return _types


def layer_type(name: str, layer: str, where: str) -> type[Layer]:
    """Returns the class for `type: name`. layer, where: the layer's name and place, for errors. Raises ConfigError with
    the nearest known types if it is unknown."""
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
    """Returns what is wrong with a type that is not known here; "" for other types."""
    types = layer_types()
    if name in types or name in _PLUGINS:
        return ""
    return f"unknown layer type '{name}'{unknown_layer(name) or suggestion(name, types)}"


set_type_check(_unknown_type)
