"""Weights laid out for AMX where a processor may lack AMX: where each number goes."""

import os
import shutil
import subprocess

import pytest

from tests.layers.harness import needs_bf16
from tests.mpi import REPO

FLAGS = ["-std=c++17", "-O1", "-fopenmp"]


@needs_bf16
def test_every_number_is_where_it_belongs(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        pytest.skip("no compiler for C++")
    program = tmp_path / "packed_weights"
    sources = ["tests/csrc/packed_weights.cpp", "csrc/kernels/packed_weights.cpp", "csrc/kernels/isa.cpp"]
    subprocess.run([compiler, *FLAGS, "-Icsrc", *sources, "-o", program], cwd=REPO, check=True, timeout=120)
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # see test_amx_gradient.py
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
