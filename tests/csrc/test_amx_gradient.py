"""The kernel that computes gradients of weights by AMX, on processors that may lack AMX: its own code, with arrays as
tiles."""

from tests.csrc.program import output_of
from tests.layers.harness import needs_bf16

FLAGS = ["-O2", "-ffp-contract=off"]  # the flags of CMakeLists.txt that change results


@needs_bf16
def test_sums_are_exact(tmp_path):
    found = output_of(tmp_path, ["tests/csrc/amx_gradient.cpp", "csrc/kernels/isa.cpp"], FLAGS)
    assert found.endswith("0 of 220 wrong\n")
