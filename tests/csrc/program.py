"""Compiles and runs C++ programs that test kernels for processors other than this one."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mpi import REPO


def output_of(folder: Path, sources: Sequence[str], flags: Sequence[str]) -> str:
    """Compiles C++ sources, named from the repository's root, into `folder` and runs the program, which must succeed.
    Returns what it prints. Skips the test if there is no compiler."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        pytest.skip("no compiler for C++")
    program = folder / Path(sources[0]).stem
    built = [compiler, "-std=c++17", "-fopenmp", *flags, "-Icsrc", *sources, "-o", program]
    subprocess.run(built, cwd=REPO, check=True, timeout=120)
    # without a thread sanitizer and the OpenMP that it uses, since the teams must be libgomp's
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout
