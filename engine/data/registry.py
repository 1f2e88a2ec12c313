"""Finds the classes that read data by name: a Source by its backend, a Reader by the type of its data layer.

The modules in engine/data/sources and engine/data/readers register their classes here.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from engine import proto
from engine.config.suggestions import suggestion
from engine.data.shards import expand
from engine.errors import ConfigError, DataError

if TYPE_CHECKING:
    from engine.data.reader import Reader

# An item of a source: the serialised message that the source stores, or a Datum made of an image file.
Stored: TypeAlias = "bytes | proto.Datum"


class Source(Protocol):
    """Items of a collection by number. item() is called from several threads at once.

    classes: names of the classes by their labels, empty where the source does not say.
    """

    classes: list[str]

    def __init__(self, path: str, where: str | None, shuffled: bool, fields: Sequence[str] = ()):
        """Opens path. shuffled: items will not be asked for in order. fields: the source's own names of what the tops
        are made of. Raises DataError; ConfigError for fields if this type of source has none."""

    @staticmethod
    def recognises(path: str) -> bool:
        """Returns whether what is at path looks like a source of this type. At most one type recognises a path."""
        ...

    @staticmethod
    def files_of(path: str, where: str | None = None) -> list[str]:
        """Returns all files of a source of this type, without opening it. Raises DataError."""
        ...

    def __len__(self) -> int: ...

    def item(self, index: int) -> tuple[str, Stored]:
        """Returns (key, what is stored). Raises DataError."""
        ...


SourceT = TypeVar("SourceT", bound=Source)
ReaderT = TypeVar("ReaderT", bound="Reader")

_sources: dict[str, type[Source]] = {}
_readers: dict[str, type[Reader]] = {}


def source(name: str) -> Callable[[type[SourceT]], type[SourceT]]:
    """Class decorator: registers the Source for `backend: <name>`."""

    def register(cls: type[SourceT]) -> type[SourceT]:
        _sources[name] = cls
        return cls

    return register


def reader(name: str) -> Callable[[type[ReaderT]], type[ReaderT]]:
    """Class decorator: registers the Reader of data layers of `type: <name>`."""

    def register(cls: type[ReaderT]) -> type[ReaderT]:
        _readers[name] = cls
        return cls

    return register


def find_source(name: str, where: str | None = None) -> type[Source]:
    """Returns the class registered for a backend. Raises ConfigError, with the known names, for an unknown one."""
    _load("sources")
    if name not in _sources:
        raise ConfigError(f"backend {name} is not supported{suggestion(name, _sources)}", where)
    return _sources[name]


def open_source(
    path: str, where: str | None = None, shuffled: bool = False, fields: Sequence[str] = (), backend: str = ""
) -> Source:
    """Opens the source at a path. It is of the type `backend`; if that is "", of the type that recognises the path.

    Raises ConfigError for an unknown backend, DataError if no type recognises the path, or if another one does.
    """
    found = recognised(path)
    if backend and found in ("", backend):
        return find_source(backend, where)(path, where, shuffled, fields)
    if backend:
        raise DataError(f"{path} is no {backend}, but of type {found}: set backend: {found}, or leave it out", where)
    if not found:
        if os.path.lexists(path):
            known = ", ".join(sorted(_sources))
            raise DataError(f"{path}: not a source of any known type; known: {known}", where)
        raise DataError(f"{path}: no such file or folder", where)
    return find_source(found, where)(path, where, shuffled, fields)


def recognised(path: str) -> str:
    """Returns the type of source that recognises a path; "" if none does."""
    _load("sources")
    try:
        return next((name for name, each in _sources.items() if each.recognises(path)), "")
    except (OSError, ValueError):  # no permission, or no name that a file can have
        return ""


def files_of(path: str, where: str | None = None) -> list[str]:
    """Returns all files of the source at a path. Raises DataError, also if no type recognises the path."""
    if not (kind := recognised(path)):
        open_source(path, where)  # raises
    return find_source(kind).files_of(path, where)


def is_here(path: str) -> bool:
    """Returns whether there is anything at a path, which may be within an archive, or stand for many files."""
    try:
        first = expand(path)[0]  # a pattern is recognised by its name alone, whether its files are there or not
        return os.path.exists(first) or bool(recognised(first))
    except (DataError, ValueError):
        return False


def find_reader(name: str, where: str | None = None) -> type[Reader]:
    """Returns the class registered for a type of data layer. Raises ConfigError, with the known types, for an unknown
    one."""
    _load("readers")
    if name not in _readers:
        raise ConfigError(f"data layers of type {name} cannot be read{suggestion(name, _readers)}", where)
    return _readers[name]


@functools.cache
def _load(kind: str) -> None:
    """Imports the modules of engine/data/sources or readers, once: looking for them reads the disk."""
    package = importlib.import_module(f"engine.data.{kind}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
