"""Builds engine.host._ext (C++ on oneDNN) and the compiled schema; everything else is in pyproject.toml.

Objects stay in build/ between builds, isolated or not, and are compiled again only when their source or a header
of csrc/ is newer. ENGINE_BUILD_JOBS sets the number of parallel compilations (all cores otherwise).
"""

import hashlib
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))  # an isolated build does not look beside setup.py

from build_proto import compile_schema  # noqa: E402
from find_dnnl import Dnnl, dotted, find_dnnl  # noqa: E402

HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.h"))
SOURCES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.cpp"))
# No contraction: an update gives the same bits whatever instruction set a rank has. No errno: square roots vectorise.
FLOAT_FLAGS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
COMPILE_FLAGS = ["-O3", "-fopenmp", "-fvisibility=hidden", "-Wall", *FLOAT_FLAGS]


def python_headers() -> list[str]:
    """Extra include folders for Python.h: none where it is installed, else what tools/python_headers.sh fetched."""
    if any((Path(sysconfig.get_path(kind)) / "Python.h").exists() for kind in ("include", "platinclude")):
        return []
    fetched = ROOT / "build/python-headers/usr/include"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (fetched / version / "Python.h").exists():
        raise SystemExit("Python.h not found: `apt install python3-dev`, or without root: `tools/python_headers.sh`")
    return [str(fetched / version), str(fetched)]


def is_stale(object_file: str, source: str) -> bool:
    """True if the source or any header of csrc/ is newer than the object."""
    built = Path(object_file).stat().st_mtime
    return any((ROOT / path).stat().st_mtime >= built for path in (source, *HEADERS))


class BuildPy(build_py):
    """Compiles the schema into the package before its files are collected."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # or modules that are gone would stay in wheels
        compile_schema(ROOT / "proto/caffe.proto", ROOT / "engine/proto/caffe.desc")
        super().run()


class BuildExt(build_ext):
    """Keeps objects in build/, and notes beside engine.host._ext which oneDNN it was linked with."""

    def run(self):
        self.dnnl = find_dnnl()
        # Objects of another Python, oneDNN or pybind11 are never mixed: each combination has its own folder.
        dnnl = self.dnnl if self.dnnl.own else self.dnnl.version
        inputs = repr((platform.machine(), pybind11.__version__, dnnl, COMPILE_FLAGS))
        key = hashlib.sha256(inputs.encode()).hexdigest()[:8]
        self.build_temp = str(ROOT / f"build/objects-{sys.implementation.cache_tag}-{key}")
        self.force = True  # linking is cheap; is_stale() decides about compiling
        super().run()

    def build_extension(self, ext):
        ext.include_dirs += [str(self.dnnl.include), *python_headers()]
        ext.library_dirs += [str(self.dnnl.library)]
        # The wheel puts libdnnl into <prefix>/lib, which is three (lib/python3.x/site-packages) or, where that
        # starts with lib64, four folders up from engine/. Other places: engine/host/_dnnl.py.
        search = [str(self.dnnl.library)] if self.dnnl.own else ["$ORIGIN/../../../..", "$ORIGIN/../../../../../lib"]
        ext.extra_link_args += [f"-Wl,-rpath,{folder}" for folder in search]
        with ParallelCompile("ENGINE_BUILD_JOBS", needs_recompile=is_stale):
            super().build_extension(ext)
        write_build_info(Path(self.get_ext_fullpath(ext.name)).parent, self.dnnl)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        write_build_info(ROOT / "engine/host", self.dnnl)


def write_build_info(folder: Path, dnnl: Dnnl) -> None:
    own = repr(str(dnnl.library)) if dnnl.own else None
    (folder / "_build_info.py").write_text(
        '"""Written by setup.py."""\n\n'
        f'DNNL_VERSION = "{dotted(dnnl.version)}"  # of the headers that engine.host._ext was compiled with\n'
        f"DNNL_FOLDER = {own}  # of libdnnl.so when it is not the wheel's\n"
    )


setup(
    ext_modules=[
        Pybind11Extension(
            "engine.host._ext",
            SOURCES,
            cxx_std=17,
            include_dirs=["csrc"],
            libraries=["dnnl"],
            depends=HEADERS,
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=["-fopenmp"],
        )
    ],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
)
