"""Makes new files and folders appear under their names together, when all of them are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from engine.errors import DataError
from engine.files import reason, unfinished
from engine.host.interrupts import ended_in_order

Begin: TypeAlias = Callable[[str], Path]


@contextlib.contextmanager
def appearing() -> Iterator[Begin]:
    """Yields a function that takes the name that a file or folder will have, and returns the path to write it to.

    At the end all get their names. If there is an error, also one in giving a name, or if a signal ends the process,
    all of them are removed. Raises DataError if a name cannot be given.
    """
    unnamed: dict[str, Path] = {}
    named: list[Path] = []

    def begin(name: str) -> Path:
        unnamed[name] = unfinished(Path(name), "partial")
        return unnamed[name]

    with ended_in_order():
        try:
            yield begin
            for name, path in unnamed.items():
                try:
                    _give(path, name)
                except OSError as error:
                    raise DataError(f"cannot write {name}: {reason(error)}") from None
                named.append(Path(name))
        except BaseException:
            _remove(named)
            raise
        finally:
            _remove(unnamed.values())


@contextlib.contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Makes a folder, and yields its path until it is complete and appears under its name.

    Raises DataError if it cannot be written, also in place of an OSError of the caller. Then, or if a signal ends the
    process, nothing of it is left behind."""
    with appearing() as begin:
        folder = begin(name)
        try:
            folder.mkdir(parents=True)
            yield folder
        except OSError as error:
            raise DataError(f"cannot be written: {reason(error)}", name) from None


def _give(path: Path, name: str) -> None:
    """Gives a file or folder its name. Raises OSError, also if there is something of this name already."""
    if path.is_dir():
        os.rename(path, name)
        return
    try:
        os.link(path, name)  # not a rename, which would replace a file
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        os.rename(path, name)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
