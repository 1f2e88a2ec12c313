"""What an allreduce may cost in accuracy, on one host and on hosts that MPICH makes up on this one."""

import pytest

from tests.mpi import run_ranks

PROGRAM = """
import hashlib
import numpy as np
from engine.comm import mpi_channel
from engine.comm.settings import Reduction
from engine.comm.world import world
w = world()
mpi_channel.MESSAGE_BYTES = 40_000  # several messages
channel = w.channel(Reduction({hierarchical}, {bf16}, {feedback}))
hosts = {hosts}
assert w.local_size == w.size // hosts, "hosts are not made up"
assert (channel._local is not None) == ({hierarchical} and 1 < w.local_size < w.size)
grouped = {hierarchical} and 1 < w.local_size < w.size
for size in (1, 31, 25_003):
    residual, total, exact, least = np.zeros(size, np.float32), np.zeros(size), np.zeros(size), np.zeros(size)
    for step in range(20):
        mine = [np.random.default_rng((step, rank)).standard_normal(size).astype(np.float32) for rank in range(w.size)]
        values = mine[w.rank].copy()
        channel.allreduce(values, residual if {feedback} else None)
        digests = w.gather(hashlib.sha256(values.tobytes()).hexdigest())
        assert digests is None or len(set(digests)) == 1, "the ranks differ"
        sums = np.sum(np.asarray(mine, np.float64), axis=0)
        magnitudes = np.abs(mine).astype(np.float64).sum(axis=0)
        error = np.abs(values - sums)
        bound = 2**-24 * w.size * magnitudes
        if {bf16} and not {feedback}:
            bound = 1.01 * 2**-8 * (magnitudes + np.abs(sums)) + bound
        if not {feedback}:
            assert (error <= bound).all(), (error / bound).max()
        total, exact, least = total + values, exact + sums, np.maximum(least, magnitudes)
    if {feedback}:  # after any number of steps no more is missing than what is in the residuals
        missing = np.abs(total - exact)
        assert (missing <= 2**-8 * 1.5 * (w.size + 1) * least).all()
        w.allreduce(residual)
        if not grouped:
            np.testing.assert_allclose(total + residual, exact, rtol=0, atol=2e-5)
    assert np.abs(residual).max() > 0 or not {feedback} or (grouped and w.local_rank)
channel.close()
w.close()
print("fine", flush=True)
"""


def channel(ranks: int, hosts: int = 1, hierarchical=False, bf16=False, feedback=False) -> None:
    program = PROGRAM.format(hosts=hosts, hierarchical=hierarchical, bf16=bf16, feedback=feedback)
    done = run_ranks(ranks, program, timeout=60, environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    if "hosts are not made up" in done.stderr:
        pytest.skip("this MPI cannot make several hosts of one")
    assert done.returncode == 0 and done.stdout.count("fine") == ranks, done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("bf16", "feedback"), [(False, False), (True, False), (True, True)])
def test_one_host(ranks, bf16, feedback):
    channel(ranks, bf16=bf16, feedback=feedback)


@pytest.mark.mpi
@pytest.mark.parametrize(("bf16", "feedback"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_two_hosts_of_two_ranks(hierarchical, bf16, feedback):
    channel(4, 2, hierarchical, bf16, feedback)


@pytest.mark.mpi
@pytest.mark.parametrize(("bf16", "feedback"), [(False, False), (True, True)])
def test_three_hosts_of_one_rank_each_exchange_shares(bf16, feedback):
    channel(3, 3, bf16=bf16, feedback=feedback)


@pytest.mark.mpi
def test_hierarchical_on_one_host_is_plain():
    channel(2, 1, hierarchical=True)


PARTS = """
import numpy as np
from engine.comm.settings import Reduction
from engine.comm.shares import bounds_of_share
from engine.comm.world import world
from engine.host import _core
w = world()
assert w.local_size == w.size // {hosts}, "hosts are not made up"

def rounded(values):
    packed = np.empty(values.size, np.uint16)
    _core.pack_bf16(values, packed)
    _core.unpack_bf16(packed, found := np.empty_like(values))
    return found

for hierarchical in (False, True):
    channel = w.channel(Reduction(hierarchical, {bf16}))
    for size in (1, 31, 5_003):
        all_of_it = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(w.size)]
        mine, exact = all_of_it[w.rank], np.sum(all_of_it, axis=0, dtype=np.float64)
        bound = (2**-8 if {bf16} else 2**-22) * 1.01 * (np.sum(np.abs(all_of_it), axis=0) + np.abs(exact))
        channel.allreduce(whole := mine.copy())
        sums = channel.reduce(found := mine.copy())
        if sums is not None:
            _core.unpack_bf16(sums, found)
        assert (found == whole).all() and (abs(found - exact) <= bound).all()
        if hierarchical:  # with which nothing is sharded
            continue
        begin, end = bounds_of_share(size, w.size, w.rank)
        channel.reduce_scatter(found := mine.copy())
        share = found[begin:end].copy()
        assert (abs(share - exact[begin:end]) <= bound[begin:end]).all()
        found[:begin] = found[end:] = np.nan
        channel.all_gather(found, share if {bf16} else None)
        assert (found[begin:end] == (rounded(share) if {bf16} else share)).all()
        assert (abs(found - exact) <= bound).all()
    channel.close()
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("bf16", [False, True])
def test_sums_that_come_in_parts(ranks, hosts, bf16):
    """As bfloat16, where an allreduce would unpack them; those of each rank's share; and the shares of all."""
    done = run_ranks(ranks, PARTS.format(hosts=hosts, bf16=bf16), environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    if "hosts are not made up" in done.stderr:
        pytest.skip("this MPI cannot make several hosts of one")
    assert done.returncode == 0 and done.stdout.count("fine") == ranks, done.stderr


UNEVEN = """
import numpy as np
from engine.comm.settings import Reduction
from engine.comm.world import world
w = world()
assert sorted(w.gather(w.local_size) or [1, 1, 2]) != [3, 3, 3], "hosts are not made up"
values = np.full(1000, w.rank + 1, np.float32)
w.channel(Reduction(True)).allreduce(values)
assert (values == 6).all()
print("fine")
w.close()
"""


@pytest.mark.mpi
def test_a_host_of_one_rank_beside_another_of_two():
    done = run_ranks(3, UNEVEN, environ={"MPIR_CVAR_NUM_CLIQUES": "2"})
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr


FEW = """
import numpy as np
from engine.comm.settings import Reduction
from engine.comm.world import world

class Counted:
    def __init__(self, comm):
        self.comm, self.count = comm, 0
    def __getattr__(self, name):
        self.count += name in ("Isend", "Irecv")
        return getattr(self.comm, name)

w = world()
channel = w.channel(Reduction(bf16={bf16}))
assert channel._direct or {bf16}
channel._across = counted = Counted(channel._across)
values = np.full(20, w.rank + 1, np.float32)
channel.allreduce(values)
assert (values == 6).all()
assert counted.count == (4 if w.rank == 0 else 2), counted.count
channel._across = counted.comm
channel.close()
w.close()
print("fine")
"""


@pytest.mark.mpi
@pytest.mark.parametrize("bf16", [False, True])
def test_ranks_without_a_share_send_gradients_and_get_sums_and_that_is_all(bf16):
    done = run_ranks(3, FEW.format(bf16=bf16))
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr
