"""Loads oneDNN's library before engine.host._ext needs it."""

import ctypes
from importlib import metadata
from pathlib import Path

from engine.errors import EngineError

LIBRARY = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"


def preload() -> None:
    """Loads the wheel's libdnnl, wherever pip put it, so that importing engine.host._ext finds it already there.

    The extension's own search path covers a plain installation only, not an editable one or an unusual prefix. Nothing
    is loaded when it was built against the user's own oneDNN: that folder is part of its search path. Raises
    EngineError when the extension was never built, or when the library cannot be found.
    """
    try:
        from engine.host._build_info import DNNL_FOLDER
    except ImportError as error:
        raise EngineError("the extension is not built: run `pip install .`, or `make build` in a checkout") from error
    if DNNL_FOLDER is not None:
        return
    paths = wheel_libraries()
    if not paths:
        raise EngineError(f"{LIBRARY} not found: `pip install {WHEEL}==2023.2.0` into the environment of engine")
    try:
        # Kept local: the dynamic linker matches it to engine.host._ext by its name, and no other module sees it.
        ctypes.CDLL(paths[0])
    except OSError as error:
        raise EngineError(f"{paths[0]} cannot be loaded: {error}") from error


def wheel_libraries() -> list[str]:
    """Paths of LIBRARY among the files of the installed wheel; empty when it is not installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(file.locate()).resolve()) for file in files if file.name == LIBRARY]
