"""The accuracy of an allreduce, on one host and on hosts that MPICH simulates on this one."""

import functools
import subprocess

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
hosts = {hosts}
assert w.local_size == w.size // hosts, "hosts are not made up"
for hierarchical, bf16, feedback in {ways}:
    channel = w.channel(Reduction(hierarchical, bf16, feedback))
    grouped = hierarchical and 1 < w.local_size < w.size
    assert (channel._local is not None) == grouped
    for size in (1, 31, 25_003):
        residual, total, exact, least = np.zeros(size, np.float32), np.zeros(size), np.zeros(size), np.zeros(size)
        for step in range(20):
            draws = [np.random.default_rng((step, rank)).standard_normal(size) for rank in range(w.size)]
            mine = [draw.astype(np.float32) for draw in draws]
            values = mine[w.rank].copy()
            channel.allreduce(values, residual if feedback else None)
            digests = w.gather(hashlib.sha256(values.tobytes()).hexdigest())
            assert digests is None or len(set(digests)) == 1, "the ranks differ"
            sums = np.sum(np.asarray(mine, np.float64), axis=0)
            magnitudes = np.abs(mine).astype(np.float64).sum(axis=0)
            error = np.abs(values - sums)
            bound = 2**-24 * w.size * magnitudes
            if bf16 and not feedback:
                bound = 1.01 * 2**-8 * (magnitudes + np.abs(sums)) + bound
            if not feedback:
                assert (error <= bound).all(), (error / bound).max()
            total, exact, least = total + values, exact + sums, np.maximum(least, magnitudes)
        if feedback:  # after any number of steps no more is missing than what is in the residuals
            missing = np.abs(total - exact)
            assert (missing <= 2**-8 * 1.5 * (w.size + 1) * least).all()
            w.allreduce(residual)
            if not grouped:
                np.testing.assert_allclose(total + residual, exact, rtol=0, atol=2e-5)
        assert np.abs(residual).max() > 0 or not feedback or (grouped and w.local_rank)
    channel.close()
    print("fine:", hierarchical, bf16, feedback, flush=True)
w.close()
"""
WAYS = {  # ranks, hosts -> what is tried there: hierarchical, bf16, feedback
    (2, 1): [(False, False, False), (False, True, False), (False, True, True), (True, False, False)],
    (3, 1): [(False, False, False), (False, True, False), (False, True, True)],
    (4, 2): [(grouped, *way) for grouped in (False, True) for way in ((False, False), (True, False), (True, True))],
    (3, 3): [(False, False, False), (False, True, True)],
}


@functools.cache
def channels(ranks: int, hosts: int) -> subprocess.CompletedProcess:
    """Tries all ways of this number of ranks, one after the other, because starting the ranks takes longer; returns the
    finished process."""
    program = PROGRAM.format(hosts=hosts, ways=WAYS[ranks, hosts])
    return run_ranks(ranks, program, timeout=60, environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})


def skip_on_one_host(done: subprocess.CompletedProcess) -> None:
    """Skips the test if MPI did not simulate several hosts."""
    if "hosts are not made up" in done.stderr:
        pytest.skip("this MPI cannot make several hosts of one")


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "hosts", "way"), [(*where, way) for where, ways in WAYS.items() for way in ways], ids=str
)
def test_sums_are_as_accurate_as_they_can_be(ranks, hosts, way):
    """Between hosts with one rank each, ranks exchange shares. On one host, a hierarchical sum is a plain one."""
    done = channels(ranks, hosts)
    skip_on_one_host(done)
    assert done.stdout.count(f"fine: {' '.join(map(str, way))}\n") == ranks, done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "hosts"), WAYS)
def test_the_ranks_end_well(ranks, hosts):
    done = channels(ranks, hosts)
    assert done.returncode == 0 or "hosts are not made up" in done.stderr, done.stderr


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

for hierarchical, bf16 in ((False, False), (False, True), (True, False), (True, True)):
    channel = w.channel(Reduction(hierarchical, bf16))
    for size in (1, 31, 5_003):
        all_of_it = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(w.size)]
        mine, exact = all_of_it[w.rank], np.sum(all_of_it, axis=0, dtype=np.float64)
        bound = (2**-8 if bf16 else 2**-22) * 1.01 * (np.sum(np.abs(all_of_it), axis=0) + np.abs(exact))
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
        channel.all_gather(found, share if bf16 else None)
        assert (found[begin:end] == (rounded(share) if bf16 else share)).all()
        assert (abs(found - exact) <= bound).all()
    channel.close()
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (4, 2)])
def test_sums_that_come_in_parts(ranks, hosts):
    """Sums may come as bfloat16, which an allreduce would unpack, as those of each rank's share, and as the shares of
    all."""
    done = run_ranks(ranks, PARTS.format(hosts=hosts), environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    skip_on_one_host(done)
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
    skip_on_one_host(done)
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
for bf16 in (False, True):
    channel = w.channel(Reduction(bf16=bf16))
    assert channel._direct or bf16
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
def test_ranks_without_a_share_send_gradients_and_get_sums_and_that_is_all():
    """This holds for bfloat16, too."""
    done = run_ranks(3, FEW)
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr
