"""Compiles csrc/ by CMake and Ninja into a folder of build/, where objects stay between builds, isolated or not.

setup.py calls build(). By hand, for the sanitizers:

    python tools/build_csrc.py --sanitize address,undefined     prints the folder of the extension

ENGINE_BUILD_JOBS sets the number of parallel compilations (all cores otherwise). oneDNN is the user's own where
DNNL_ROOT or CMAKE_PREFIX_PATH names one, else that of the wheels onednn-devel-cpu-gomp and onednn-cpu-gomp.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "engine.host"  # of the extension _ext, and of the .json beside it
DNNL_WHEEL = "onednn-devel-cpu-gomp"
# What changes the objects but is no file of this project: each combination has a folder of its own.
VARIABLES = ("CXX", "CXXFLAGS", "LDFLAGS", "DNNL_ROOT", "CMAKE_PREFIX_PATH")


def build(target: str = "_ext", sanitize: str = "") -> Path:
    """Compiles what has changed.

    Args:
        target: What CMakeLists.txt calls it: the extension, or another program.
        sanitize: What the compiler's sanitizers are to look for, such as "address,undefined".

    Returns:
        The folder that holds the target, and the extension's .json: which oneDNN it was built with.

    Raises:
        SystemExit: If this is no Linux, a path cannot be used, or CMake or the compiler fails; their messages are on
            the terminal by then.
    """
    check_platform()
    folder = build_folder(sanitize)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = os.environ.get("ENGINE_BUILD_JOBS") or str(len(os.sched_getaffinity(0)))
    options = {
        "CMAKE_MAKE_PROGRAM": program("ninja"),
        "ENGINE_PACKAGE": PACKAGE,
        "ENGINE_PYTHON_HEADERS": ";".join(map(str, python_headers())),
        "ENGINE_SANITIZE": sanitize,
        "Python_EXECUTABLE": sys.executable,
        **libraries(folder),
    }
    for arguments in (
        [
            "-S",
            ROOT,
            "-B",
            folder,
            "-G",
            "Ninja",
            "-Wno-deprecated",
            *(f"-D{name}={value}" for name, value in options.items()),
        ],
        ["--build", folder, "--target", target, "--parallel", jobs],
    ):
        if status := subprocess.call([program("cmake"), *arguments], stdout=2):  # what a caller prints stays its own
            raise SystemExit(f"building csrc/ failed (its messages are above): cmake ended with {status}")
    if not sanitize:
        commands = folder.parent / "compile_commands.json"  # where editors look
        commands.unlink(missing_ok=True)
        commands.symlink_to(folder / commands.name)
    return folder


def check_platform() -> None:
    """Raises SystemExit where CMake or the compiler would fail later, and say less."""
    if sys.platform != "linux":
        raise SystemExit(f"engine runs on Linux, and this is {sys.platform}: packaging/Dockerfile builds a container")
    for name in ("DNNL_ROOT", "CMAKE_PREFIX_PATH"):
        if re.search(r'["\\\x00-\x1f\ud800-\udfff]', path := os.environ.get(name, "")):  # the last: no UTF-8
            raise SystemExit(f"{name}={path!a}: a path in UTF-8 without quotes and backslashes expected: make a link")


def program(name: str) -> Path:
    """Returns where cmake or ninja is: that of the wheel, else the first on PATH."""
    if importlib.util.find_spec(name):
        wheel = importlib.import_module(name)
        return Path(wheel.CMAKE_BIN_DIR if name == "cmake" else wheel.BIN_DIR) / name
    found = shutil.which(name)
    if not found:
        raise SystemExit(f"{name} not found: `pip install {name}`, or `make build`, which brings what a build needs")
    return Path(found)


def build_folder(sanitize: str) -> Path:
    """Returns the folder for this Python, these versions of what is compiled with, and these sanitizers."""
    versions = [metadata.version("pybind11"), metadata.version(DNNL_WHEEL) if has_wheel() else ""]
    inputs = [platform.machine(), sys.base_prefix, *versions, *own_dnnl(), *map(os.environ.get, VARIABLES)]
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()[:8]
    kind = sanitize.replace(",", "-") or "csrc"
    return ROOT / f"build/{kind}-{sys.implementation.cache_tag}-{key}"


def own_dnnl() -> list[str]:
    """Returns what tells the versions of the user's own oneDNN: one that is upgraded in place keeps its path."""
    prefixes = os.environ.get("DNNL_ROOT") or os.environ.get("CMAKE_PREFIX_PATH") or ""
    headers = [Path(prefix, "include/oneapi/dnnl/dnnl_version.h") for prefix in prefixes.split(":") if prefix]
    return [header.read_text() for header in headers if header.exists()]


def libraries(folder: Path) -> dict[str, Path]:
    """Returns CMake's variables for where pybind11 and oneDNN's wheel are.

    They are reached through links in the build folder: isolated builds unpack both into another place each time, and
    objects whose command line names another place would be compiled again.
    """
    import pybind11

    found = {"pybind11_DIR": stable(Path(pybind11.get_cmake_dir()), folder / "pybind11")}
    if has_wheel():
        files = metadata.files(DNNL_WHEEL) or []
        config = next(file.locate() for file in files if file.name == "dnnl-config.cmake")
        found["ENGINE_DNNL_WHEEL"] = stable(Path(config).resolve().parent, folder / "onednn")
    return found


def stable(folder: Path, link: Path) -> Path:
    """Returns `folder`, a package's ".../*/cmake/*", as reached through a link to the package's prefix."""
    prefix = folder.parents[2]
    if not link.is_symlink() or Path(os.readlink(link)) != prefix:
        link.unlink(missing_ok=True)
        link.symlink_to(prefix)
        (link.parent / "CMakeCache.txt").unlink(missing_ok=True)  # what it remembers may be gone
    return link / folder.relative_to(prefix)


def has_wheel() -> bool:
    try:
        metadata.version(DNNL_WHEEL)
    except metadata.PackageNotFoundError:
        return False
    return True


def python_headers() -> list[Path]:
    """Returns include folders for Python.h: none where it is installed, else what tools/python_headers.sh fetched."""
    if any((Path(sysconfig.get_path(kind)) / "Python.h").exists() for kind in ("include", "platinclude")):
        return []
    fetched = ROOT / "build/python-headers/usr/include"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (fetched / version / "Python.h").exists():
        raise SystemExit("Python.h not found: `apt install python3-dev`, or without root: `tools/python_headers.sh`")
    return [fetched / version, fetched]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles csrc/.")
    parser.add_argument("--target", default="_ext", help="the extension if omitted")
    parser.add_argument("--sanitize", default="", help="address,undefined or thread")
    options = parser.parse_args()
    print(build(options.target, options.sanitize))


if __name__ == "__main__":
    main()
