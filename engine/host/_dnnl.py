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

    The extension's own search path covers a plain installation only, not an editable one or an unusual prefix. Where
    it was built against the user's own oneDNN, its search path has that folder, and nothing is loaded here. Raises
    EngineError if the extension was never built, or if the library cannot be found or loaded.
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
    dnnl_folder: str | None  # holds libdnnl.so.3; None: the wheel's is used


def build_info() -> BuildInfo:
    """Reads what the build wrote. Raises EngineError if the extension was never built for this Python."""
    file = Path(__file__).with_name("_ext" + machinery.EXTENSION_SUFFIXES[0]).with_suffix(".json")
    try:
        return BuildInfo(**json.loads(file.read_bytes()))
    except FileNotFoundError as error:
        message = "the extension is not built for this Python: run `pip install .`, or `make build` in a checkout"
        raise EngineError(message) from error


def check_version(found: str) -> None:
    """Raises EngineError if the libdnnl that was loaded (version `found`) is older than the headers of the build, for
    it may lack functions that they declare."""
    expected = build_info().dnnl_version
    if numbers(found)[:2] < numbers(expected):
        raise EngineError(
            f"oneDNN {expected} or newer expected, which engine was compiled with, found {LIBRARY} of {found}: name no "
            "older one in LD_LIBRARY_PATH, or build engine again (`pip install .`, or `make build` in a checkout)"
        )


def numbers(version: str) -> list[int]:
    """Returns [3, 2, 1] for "3.2.1"."""
    return [int(number) for number in version.split(".")]


def wheel_libraries() -> list[str]:
    """Returns the paths of LIBRARY among the files of the installed wheel; [] if no such wheel is installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return []
    return [str(Path(file.locate()).resolve()) for file in files if file.name == LIBRARY]
