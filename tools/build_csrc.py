"""Compiles csrc/ with CMake and Ninja into a folder of build/. Its object files are used again by the next build,
whether pip isolates it or not.

setup.py calls build(). By hand, for the sanitizers:

    python tools/build_csrc.py --sanitize address,undefined     prints the folder of the extension

ENGINE_BUILD_JOBS sets the number of parallel compilations; by default there is one for each core. oneDNN is the one
that DNNL_ROOT or CMAKE_PREFIX_PATH names; by default it is that of the wheels onednn-devel-cpu-gomp and
onednn-cpu-gomp.
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
# Environment variables on which the object files depend: each combination of their values has a folder of its own.
VARIABLES = ("CXX", "CXXFLAGS", "LDFLAGS", "DNNL_ROOT", "CMAKE_PREFIX_PATH")


def build(target: str = "_ext", sanitize: str = "") -> Path:
    """Compiles what has changed.

    Args:
        target: The name of a target of CMakeLists.txt: the extension, or another program.
        sanitize: The compiler's sanitizers, such as "address,undefined".

    Returns:
        The folder of the target. Beside the extension lies a .json, which says what oneDNN it was built with.

    Raises:
        SystemExit: If the system is not Linux, a path cannot be used, or CMake or the compiler fails, whose messages
            are on the terminal by then.
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
        if status := subprocess.call([program("cmake"), *arguments], stdout=2):  # stdout is for the caller's output
            raise SystemExit(f"building csrc/ failed (its messages are above): cmake ended with {status}")
    if not sanitize:
        commands = folder.parent / "compile_commands.json"  # editors look for it here
        commands.unlink(missing_ok=True)
        commands.symlink_to(folder / commands.name)
    return folder


def check_platform() -> None:
    """Raises SystemExit for what CMake or the compiler would refuse later with a worse message."""
    if sys.platform != "linux":
        raise SystemExit(f"engine runs on Linux, and this is {sys.platform}: packaging/Dockerfile builds a container")
    for name in ("DNNL_ROOT", "CMAKE_PREFIX_PATH"):
        if re.search(r'["\\\x00-\x1f\ud800-\udfff]', path := os.environ.get(name, "")):  # surrogates: no UTF-8
            raise SystemExit(f"{name}={path!a}: a path in UTF-8 without quotes and backslashes expected: make a link")


def program(name: str) -> Path:
    """Returns the path of cmake or ninja: that of its wheel, else the first on PATH. Raises SystemExit if there is
    none."""
    if importlib.util.find_spec(name):
        wheel = importlib.import_module(name)
        return Path(wheel.CMAKE_BIN_DIR if name == "cmake" else wheel.BIN_DIR) / name
    found = shutil.which(name)
    if not found:
        raise SystemExit(f"{name} not found: `pip install {name}`, or `make build`, which brings what a build needs")
    return Path(found)


def build_folder(sanitize: str) -> Path:
    """Returns the folder for this Python, the versions of pybind11 and oneDNN, the environment, and these
    sanitizers."""
    versions = [metadata.version("pybind11"), metadata.version(DNNL_WHEEL) if has_wheel() else ""]
    inputs = [platform.machine(), sys.base_prefix, *versions, *own_dnnl(), *map(os.environ.get, VARIABLES)]
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()[:8]
    kind = sanitize.replace(",", "-") or "csrc"
    return ROOT / f"build/{kind}-{sys.implementation.cache_tag}-{key}"


def own_dnnl() -> list[str]:
    """Returns the texts of the version headers of the user's own oneDNN: its path stays the same after an upgrade."""
    prefixes = os.environ.get("DNNL_ROOT") or os.environ.get("CMAKE_PREFIX_PATH") or ""
    headers = [Path(prefix, "include/oneapi/dnnl/dnnl_version.h") for prefix in prefixes.split(":") if prefix]
    return [header.read_text() for header in headers if header.exists()]


def libraries(folder: Path) -> dict[str, Path]:
    """Returns CMake's variables for the places of pybind11 and oneDNN's wheel.

    The places are links in the build folder: each isolated build unpacks both into another folder, and objects are
    compiled again if a path on their command line changes.
    """
    import pybind11

    found = {"pybind11_DIR": stable(Path(pybind11.get_cmake_dir()), folder / "pybind11")}
    if has_wheel():
        files = metadata.files(DNNL_WHEEL) or []
        config = next(file.locate() for file in files if file.name == "dnnl-config.cmake")
        found["ENGINE_DNNL_WHEEL"] = stable(Path(config).resolve().parent, folder / "onednn")
    return found


def stable(folder: Path, link: Path) -> Path:
    """Makes `link` lead to the prefix of a package, and returns the path of `folder`, the package's
    PREFIX/*/cmake/*, through it."""
    prefix = folder.parents[2]
    if not link.is_symlink() or Path(os.readlink(link)) != prefix:
        link.unlink(missing_ok=True)
        link.symlink_to(prefix)
        (link.parent / "CMakeCache.txt").unlink(missing_ok=True)  # it may name files that are gone
    return link / folder.relative_to(prefix)


def has_wheel() -> bool:
    try:
        metadata.version(DNNL_WHEEL)
    except metadata.PackageNotFoundError:
        return False
    return True


def python_headers() -> list[Path]:
    """Returns the include folders for Python.h that tools/python_headers.sh has fetched; none if it is installed.
    Raises SystemExit if there is no Python.h."""
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
