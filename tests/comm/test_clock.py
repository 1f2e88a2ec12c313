"""All ranks agree on one clock."""

import pytest

from tests.mpi import run_ranks

PROGRAM = """
import time
from mpi4py import MPI
from engine.comm import clock
comm = MPI.COMM_WORLD
wrong = 3_600_000_000_000 * comm.rank + 12_345  # an hour for each rank
offset = clock.offset(comm, lambda: time.monotonic_ns() + wrong)
expected = 12_345 - wrong if comm.rank else 0
assert abs(offset - expected) < 50_000_000, (comm.rank, offset, expected)
print("right", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_clocks_that_differ_by_hours(ranks):
    done = run_ranks(ranks, PROGRAM)
    assert done.returncode == 0 and done.stdout.count("right") == ranks, done.stderr
