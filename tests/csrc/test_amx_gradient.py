"""The gradient of weights by AMX where a processor may lack AMX: the kernel's own code, on tiles that are arrays."""

from tests.csrc.program import output_of
from tests.layers.harness import needs_bf16

FLAGS = ["-O2", "-ffp-contract=off"]  # as CMakeLists.txt has them, as far as they change results


@needs_bf16
def test_sums_are_exact(tmp_path):
    found = output_of(tmp_path, ["tests/csrc/amx_gradient.cpp", "csrc/kernels/isa.cpp"], FLAGS)
    assert found.endswith("0 of 220 wrong\n")
