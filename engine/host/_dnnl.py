"""Loads oneDNN's library before engine.host._ext needs it."""

import ctypes
import json
from importlib import machinery, metadata
from pathlib import Path
from typing import NamedTuple

from engine.errors import EngineError

LIBRARY = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"


def preload() -> None:
    """Loads the wheel's libdnnl, wherever pip put it, so that importing engine.host._ext finds it already there.

    The extension's own search path covers a plain installation only, not an editable one or an unusual prefix. Nothing
    is loaded when it was built against the user's own oneDNN: that folder is part of its search path. Raises
    EngineError when the extension was never built, or when the library cannot be found.
    """
    if build_info().dnnl_folder is not None:
        return
    paths = wheel_libraries()
    if not paths:
        raise EngineError(f"{LIBRARY} not found: `pip install {WHEEL}==2023.2.0` into the environment of engine")
    try:
        # Kept local: the dynamic linker matches it to engine.host._ext by its name, and no other module sees it.
        ctypes.CDLL(paths[0])
    except OSError as error:
        raise EngineError(f"{paths[0]} cannot be loaded: {error}") from error


class BuildInfo(NamedTuple):
    """What CMakeLists.txt wrote beside the extension."""

    dnnl_version: str  # "3.2", of the headers that the extension was compiled with
    dnnl_folder: str | None  # of libdnnl.so.3 when it is not the wheel's


def build_info() -> BuildInfo:
    """Raises EngineError if the extension was never built for this Python."""
    file = Path(__file__).with_name("_ext" + machinery.EXTENSION_SUFFIXES[0]).with_suffix(".json")
    try:
        return BuildInfo(**json.loads(file.read_bytes()))
    except FileNotFoundError as error:
        message = "the extension is not built for this Python: run `pip install .`, or `make build` in a checkout"
        raise EngineError(message) from error


def check_version(found: str) -> None:
    """Raises EngineError where the libdnnl that was loaded is older than the headers: it may lack what they promise."""
    expected = build_info().dnnl_version
    if numbers(found)[:2] < numbers(expected):
        raise EngineError(
            f"oneDNN {expected} or newer expected, which engine was compiled with, found {LIBRARY} of {found}: name no "
            "older one in LD_LIBRARY_PATH, or build engine again (`pip install .`, or `make build` in a checkout)"
        )


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def wheel_libraries() -> list[str]:
    """Paths of LIBRARY among the files of the installed wheel; empty when it is not installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(file.locate()).resolve()) for file in files if file.name == LIBRARY]
