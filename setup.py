"""Builds the C++ extension (tools/build_csrc.py) and the compiled schema; everything else is in pyproject.toml."""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))  # an isolated build does not look beside setup.py

from build_csrc import PACKAGE, build  # noqa: E402
from build_proto import compile_schema  # noqa: E402


class BuildPy(build_py):
    """Compiles the schema into the package before its files are collected."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # or modules that are gone would stay in wheels
        compile_schema(ROOT / "proto/caffe.proto", ROOT / "engine/proto/caffe.desc")
        super().run()


class BuildExt(build_ext):
    """Puts what CMake builds into the package: the extension, and beside it what it was built with."""

    def build_extension(self, ext):
        self.built = build()
        self.place(Path(self.get_ext_fullpath(ext.name)).parent)

    def copy_extensions_to_source(self):
        self.place(ROOT / PACKAGE.replace(".", "/"))

    def place(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (*self.built.glob("_ext.*.so"), *self.built.glob("_ext.*.json")):
            target = folder / file.name
            target.unlink(missing_ok=True)  # a process that runs keeps the file that it has loaded
            shutil.copy2(file, target)


setup(
    ext_modules=[Extension(f"{PACKAGE}._ext", [])],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
)
