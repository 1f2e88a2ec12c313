"""New files and folders, which appear under their names together, when all of them are complete."""

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
    """Gives a function: the name that a file or folder will have -> the path where it is written until then.

    At the end all get their names. After an error, also one of giving a name, and where a signal ends the process,
    nothing is left of any.
    Raises DataError where a name cannot be given.
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
    """Gives the path where a folder is until it appears under its name, whole. Raises DataError, also in place of an
    OSError: it cannot be written. Then, and where a signal ends the process, nothing of it is left behind."""
    with appearing() as begin:
        folder = begin(name)
        try:
            folder.mkdir(parents=True)
            yield folder
        except OSError as error:
            raise DataError(f"cannot be written: {reason(error)}", name) from None


def _give(path: Path, name: str) -> None:
    """Raises OSError, also where there is something of this name: a rename would replace a file."""
    if path.is_dir():
        os.rename(path, name)
        return
    try:
        os.link(path, name)
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
