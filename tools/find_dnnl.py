"""Finds oneDNN for the build: the user's own, or the one that the PyPI wheels bring."""

import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

OLDEST = (3, 2)
DEVEL_WHEEL, RUNTIME_WHEEL = "onednn-devel-cpu-gomp", "onednn-cpu-gomp"


class Dnnl(NamedTuple):
    """Where oneDNN is. own: it is the user's, not the wheel's, so its folder is known at run time too."""

    include: Path
    library: Path  # the folder of libdnnl.so
    version: tuple[int, int]
    own: bool


def find_dnnl() -> Dnnl:
    """DNNL_ROOT, else the first usable entry of CMAKE_PREFIX_PATH, else the wheels. Raises SystemExit with one line."""
    root = os.environ.get("DNNL_ROOT")
    if root:
        found = in_prefix(Path(root))
        if found is None:
            raise SystemExit(f"DNNL_ROOT={root}: include/oneapi/dnnl/dnnl.hpp and lib/libdnnl.so expected there")
        if found.version < OLDEST:
            raise SystemExit(f"DNNL_ROOT={root}: oneDNN {dotted(found.version)}, {dotted(OLDEST)} or newer expected")
        return found
    for prefix in re.split("[:;]", os.environ.get("CMAKE_PREFIX_PATH", "")):
        found = in_prefix(Path(prefix)) if prefix else None
        if found and found.version >= OLDEST:
            return found
    return in_wheels()


def in_prefix(prefix: Path) -> Dnnl | None:
    """oneDNN under an installation prefix, or None."""
    prefix = prefix.resolve()
    for library in (prefix / "lib", prefix / "lib64", *prefix.glob("lib/*-linux-gnu")):
        if (library / "libdnnl.so").exists() and (prefix / "include/oneapi/dnnl/dnnl.hpp").exists():
            return Dnnl(prefix / "include", library, version_of(prefix / "include"), own=True)
    return None


def in_wheels() -> Dnnl:
    """oneDNN of the wheels in the environment that builds, isolated or not."""
    headers = list(wheel_files(DEVEL_WHEEL, "dnnl_version.h"))
    libraries = list(wheel_files(RUNTIME_WHEEL, "libdnnl.so"))
    if not headers or not libraries:
        raise SystemExit(f"oneDNN not found: `pip install {DEVEL_WHEEL}==2023.2.0`, or set DNNL_ROOT to your own")
    include = next(parent for parent in headers[0].parents if parent.name == "include")
    return Dnnl(include, libraries[0].parent, version_of(include), own=False)


def wheel_files(distribution: str, name: str) -> Iterator[Path]:
    """Existing files called `name` that an installed distribution brought."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        path = Path(file.locate()).resolve()
        if file.name == name and path.exists():
            yield path


def version_of(include: Path) -> tuple[int, int]:
    """(major, minor) as the headers under an include folder state it."""
    text = (include / "oneapi/dnnl/dnnl_version.h").read_text()
    major, minor = (re.search(rf"define DNNL_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    return int(major[1]), int(minor[1])


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
