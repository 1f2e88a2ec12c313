"""All computing threads have signal stacks, also those that OpenMP starts later."""

from tests.csrc.program import output_of


def test_new_threads_have_signal_stacks(tmp_path):
    output_of(tmp_path, ["tests/csrc/threads.cpp", "csrc/threads.cpp"], ["-O1"])
