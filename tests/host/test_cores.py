"""How many threads each rank computes with."""

import os
import subprocess
import sys

import pytest

from engine.comm.world import World
from engine.host import _core, cores
from engine.host.cores import CROWDED_SPIN_COUNT, core_plan, host_and_cores, ignored_variables, share_cores, threads_for
from tests.mpi import run_ranks


def test_ranks_on_the_same_cores_divide_them():
    shared = ("node1", (0, 1, 2, 3))
    assert threads_for(shared, [shared, shared], 4) == 2
    assert threads_for(shared, [shared] * 3, 4) == 1
    assert threads_for(shared, [shared] * 9, 4) == 1
    assert threads_for(shared, [shared], 3) == 3
    assert threads_for(shared, [shared, shared], 3) == 1


def test_ranks_that_are_pinned_apart_or_elsewhere_keep_theirs():
    first, second, other = ("node1", (0, 1)), ("node1", (2, 3)), ("node2", (0, 1))
    assert threads_for(first, [first, second, other], 2) == 2


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7000")
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    share_cores(World().places())
    assert (os.environ["OMP_NUM_THREADS"], os.environ["GOMP_SPINCOUNT"]) == ("7000", "5")


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "environ, ranks, threads, sleeps",
    [
        ({}, 1, CORES, False),
        ({}, CORES, 1, True),  # besides its thread, each rank has servers
        ({}, CORES + 1, 1, True),
        ({"OMP_NUM_THREADS": f"{CORES},2"}, 1, f"{CORES},2", False),
        ({"OMP_NUM_THREADS": f"{CORES + 1},2"}, 1, f"{CORES + 1},2", True),
        ({"OMP_NUM_THREADS": "many"}, 2, "many", True),  # for libgomp, this means all cores
        ({"OMP_NUM_THREADS": f"{CORES + 1}", "OMP_WAIT_POLICY": "active"}, 1, CORES + 1, False),
    ],
)
def test_idle_threads_sleep_soon_where_there_are_more_than_cores(monkeypatch, environ, ranks, threads, sleeps):
    for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # this makes monkeypatch restore the value that it had
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_core, "set_threads", (told := []).append)  # of a script that has loaded the extension
    share_cores([host_and_cores()] * ranks)
    assert told == ([] if "OMP_NUM_THREADS" in environ else [threads])
    assert os.environ["OMP_NUM_THREADS"] == str(threads)
    assert os.environ.get("GOMP_SPINCOUNT") == (CROWDED_SPIN_COUNT if sleeps else None)


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_idle_threads_of_ranks_that_leave_a_core_free_spin(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    host, cores = host_and_cores()
    for threads, expected in ((CORES - 1, None), (CORES, CROWDED_SPIN_COUNT)):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        share_cores([(host, cores), ("elsewhere", cores)])
        assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_ranks_of_a_script_divide_what_its_container_may_use(monkeypatch):
    monkeypatch.setattr(_core, "set_threads", (told := []).append)
    monkeypatch.setattr(cores, "cores_at_once", lambda: 4)
    monkeypatch.setattr(cores, "own_cores", lambda: tuple(range(16)))
    for own, expected in (None, "2"), ("3", "3"):
        monkeypatch.setenv("GOMP_SPINCOUNT", "")
        monkeypatch.setenv("OMP_NUM_THREADS", "")
        if own is None:
            monkeypatch.delenv("OMP_NUM_THREADS")
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", own)
        cores.keep_within_limit()
        assert os.environ["OMP_NUM_THREADS"] == (own or "4")
        share_cores([host_and_cores()] * 2)
        assert os.environ["OMP_NUM_THREADS"] == expected
    assert told == [2]


def test_the_extension_takes_the_threads():
    program = """
from engine.comm.world import world
from engine.host.cores import share_cores
import os
os.environ.pop("OMP_NUM_THREADS", None)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
share_cores(world().places())
from engine.host import _core
assert _core.threads() == 1, _core.threads()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


BOUND = """
import os
from engine.host.cores import helper_cores, own_cores
cores = own_cores()
from engine.host import _core
from engine.data.prefetch import Prefetcher
from engine.data.reader import Reader
from engine.data.sampler import BatchShare
bound = set(_core.bound_cores())
assert os.sched_getaffinity(0) == bound and cores == own_cores()
seats = []
class Recording(Reader):
    shapes = [(1,)]
    def __init__(self): pass
    def load(self, sample, out):
        seats.append(os.sched_getaffinity(0))
        return "key"
share = BatchShare(0, [(0, 0)])
with Prefetcher(Recording(), "data", iter([share]), 1) as batches:
    batches.next()
assert seats == [set(cores) - bound or set(cores)], seats
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_that_do_not_compute_leave_the_cores_that_do():
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}
    done = subprocess.run([sys.executable, "-c", BOUND], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.mpi
def test_ranks_that_openmp_binds_to_one_core_are_told():
    program = """
from engine.comm.world import world
from engine.host.cores import clash_warning
found = clash_warning(world())
if world().rank == 0:
    print(found)
world().close()
"""
    done = run_ranks(2, program, environ={"OMP_PLACES": "cores", "OMP_PROC_BIND": "close"})
    assert done.stdout.startswith("ranks 0 and 1 both compute on core "), done.stderr
    assert run_ranks(2, program).stdout == "\n"


FOUR = ("node1", (0, 1, 2, 3))


def plan(ranks: int, threads: int, servers: int = 0, server_cores=None) -> tuple[str, str]:
    return core_plan(FOUR, [FOUR] * ranks, threads=threads, servers=servers, server_cores=server_cores, decoders=2)


def test_the_plan_of_cores():
    assert plan(1, 4) == ("Cores 0-3; on this rank 4 compute threads, 2 decoding threads", "")
    line, warning = plan(2, 1, servers=2, server_cores=(2, 3))
    assert line == (
        "Cores 0-3, shared by 2 ranks; on this rank 1 compute thread, 2 communication servers (pinned to 2-3), "
        "2 decoding threads"
    )
    assert warning == ""


def test_more_ranks_than_cores_are_advised_to_be_fewer():
    assert plan(2, 4)[1].endswith("8 compute threads on 4 cores slow each other down: OMP_NUM_THREADS=2")
    assert plan(5, 1)[1].endswith(
        "5 compute threads on 4 cores slow each other down: start 4 ranks at most on this host"
    )


def test_the_plan_of_cores_that_openmp_has_bound():
    line, warning = core_plan(FOUR, [FOUR], threads=3, servers=1, server_cores=None, decoders=2, bound=(0, 1, 2))
    assert line == (
        "Cores 0-3; on this rank 3 compute threads (bound to 0-2), 1 communication server (on 3), "
        "2 decoding threads (on 3)"
    )
    assert warning == ""


def test_overlaps_are_told():
    assert "8 compute threads on 4 cores" in plan(2, 4)[1] and plan(2, 4)[1].endswith("OMP_NUM_THREADS=2")
    assert plan(2, 2, servers=2)[1].startswith("communication servers share cores with compute threads")
    assert plan(4, 1, servers=2)[1].endswith("leave some free: start fewer ranks")
    assert plan(2, 2, servers=2)[1].endswith("leave some free: OMP_NUM_THREADS=1") and not plan(2, 1, servers=2)[1]
    assert plan(1, 3, servers=1, server_cores=(0,))[1] and not plan(1, 3, servers=1)[1]


def test_variables_of_other_libraries_are_named():
    environ = {"KMP_AFFINITY": "granularity=fine,compact", "MKL_NUM_THREADS": "8", "OMP_NUM_THREADS": "8"}
    assert ignored_variables(environ) == [
        "KMP_AFFINITY is ignored: engine computes with GNU OpenMP; set OMP_PROC_BIND=close and OMP_PLACES=cores",
        "MKL_NUM_THREADS is ignored: engine computes with GNU OpenMP; set OMP_NUM_THREADS",
    ]
