"""What reads data, by name: a database by its backend, a data layer by its type.

A module in engine/data/sources or engine/data/readers registers what it holds.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.config.suggestions import suggestion
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.data.reader import Reader


class Source(Protocol):
    """Items of a database by number. item() is called from several threads at once."""

    def __init__(self, path: str, where: str | None, shuffled: bool):
        """Opens path, or raises DataError. shuffled: items will not be asked for in order."""

    def __len__(self) -> int: ...

    def item(self, index: int) -> tuple[str, bytes]:
        """(key, serialised Datum). Raises DataError."""
        ...


SourceT = TypeVar("SourceT", bound=Source)
ReaderT = TypeVar("ReaderT", bound="Reader")

_sources: dict[str, type[Source]] = {}
_readers: dict[str, type[Reader]] = {}


def source(name: str) -> Callable[[type[SourceT]], type[SourceT]]:
    """Class decorator: the data source for `backend: <name>`."""

    def register(cls: type[SourceT]) -> type[SourceT]:
        _sources[name] = cls
        return cls

    return register


def reader(name: str) -> Callable[[type[ReaderT]], type[ReaderT]]:
    """Class decorator: the Reader of data layers of `type: <name>`."""

    def register(cls: type[ReaderT]) -> type[ReaderT]:
        _readers[name] = cls
        return cls

    return register


def find_source(name: str, where: str | None = None) -> type[Source]:
    """The class registered for a backend. Raises ConfigError, with the known names, for an unknown one."""
    from engine.data import sources

    _load(sources)
    if name not in _sources:
        raise ConfigError(f"backend {name} is not supported{suggestion(name, _sources)}", where)
    return _sources[name]


def find_reader(name: str, where: str | None = None) -> type[Reader]:
    """The class registered for a type of data layer. Raises ConfigError, with the known types, for an unknown one."""
    from engine.data import readers

    _load(readers)
    if name not in _readers:
        raise ConfigError(f"data layers of type {name} cannot be read{suggestion(name, _readers)}", where)
    return _readers[name]


def _load(package: ModuleType) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
