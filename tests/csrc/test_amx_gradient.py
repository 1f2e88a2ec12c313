"""The gradient of weights by AMX where a processor may lack AMX: the kernel's own code, on tiles that are arrays."""

import os
import shutil
import subprocess

import pytest

from tests.layers.harness import needs_bf16
from tests.mpi import REPO

PROGRAM = "tests/csrc/amx_gradient.cpp"
# As CMakeLists.txt has them, as far as they change results.
FLAGS = ["-std=c++17", "-O2", "-fopenmp", "-ffp-contract=off"]


@needs_bf16
def test_sums_are_exact(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        pytest.skip("no compiler for C++")
    program = tmp_path / "amx_gradient"
    sources = [PROGRAM, "csrc/kernels/isa.cpp"]
    subprocess.run([compiler, *FLAGS, "-Icsrc", *sources, "-o", program], cwd=REPO, check=True, timeout=120)
    # Not with a sanitizer of threads, which does not see libgomp's barriers.
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("0 of 220 wrong\n")
