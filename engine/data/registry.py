"""The data sources by the name of their backend. A module in engine/data/sources registers what it holds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Protocol

from engine.errors import ConfigError
from engine.names import suggestion


class Source(Protocol):
    """Items by number. item() is called from several threads at once."""

    def __init__(self, path: str, where: str | None, shuffled: bool):
        """Opens path, or raises DataError. shuffled: items will not be asked for in order."""

    def __len__(self) -> int: ...

    def item(self, index: int) -> tuple[str, bytes]:
        """(key, serialised Datum). Raises DataError."""


_sources: dict[str, type[Source]] = {}


def source(name: str) -> Callable[[type], type]:
    """Class decorator: the data source for `backend: <name>`."""

    def register(cls: type) -> type:
        _sources[name] = cls
        return cls

    return register


def find_source(name: str, where: str | None = None) -> type[Source]:
    """The class registered for a backend. Raises ConfigError, with the known names, for an unknown one."""
    from engine.data import sources

    for module in pkgutil.iter_modules(sources.__path__):
        importlib.import_module(f"{sources.__name__}.{module.name}")
    if name not in _sources:
        raise ConfigError(f"backend {name} is not supported{suggestion(name, _sources)}", where)
    return _sources[name]
