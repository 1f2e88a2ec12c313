"""What every computing thread needs: also those that OpenMP makes later."""

from tests.csrc.program import output_of


def test_new_threads_have_signal_stacks(tmp_path):
    output_of(tmp_path, ["tests/csrc/threads.cpp", "csrc/threads.cpp"], ["-O1"])
