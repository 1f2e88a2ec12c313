"""Weights laid out for AMX, on processors that may lack AMX: each number is in its place."""

from tests.csrc.program import output_of
from tests.layers.harness import needs_bf16


@needs_bf16
def test_every_number_is_where_it_belongs(tmp_path):
    sources = ["tests/csrc/packed_weights.cpp", "csrc/kernels/packed_weights.cpp", "csrc/kernels/isa.cpp"]
    output_of(tmp_path, sources, ["-O1"])
