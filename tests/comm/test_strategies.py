"""Each strategy computes on several ranks the update that one rank would compute."""

import functools
import os

import numpy as np
import pytest

from engine.comm.strategies.strategy import Step
from engine.comm.world import World
from engine.errors import CommError
from tests.comm.gradients import Run, reference
from tests.mpi import run_ranks


@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_one_rank(clip):
    run = Run(World(), clip=clip, threads=2)
    run.steps()
    np.testing.assert_allclose(run.weights, reference(clip), rtol=1e-5, atol=1e-6)
    run.strategy.close()


def test_clipping_is_of_the_sum_over_micro_batches():
    """Caffe takes the norm of the accumulated gradients first, and divides by iter_size afterwards."""
    run, whole = Run(World(), clip=6.0, iter_size=3), Run(World(), clip=2.0)
    run.steps()
    whole.steps()
    np.testing.assert_allclose(run.weights, whole.weights, rtol=1e-5, atol=1e-6)


def test_a_bucket_that_backward_forgot_is_named():
    run = Run(World())
    run.strategy.start(Step(0, 0.1))
    for bucket in run.buckets[:-1]:
        run.queue.ready(bucket.index)
    with pytest.raises(CommError, match=r"without the gradients of 1 buckets \(p5\)"):
        run.strategy.backward_done()


RANKS = """
import os
from engine.comm.world import world
from tests.comm.gradients import *
w = world()
for number, (servers, comm, clip, iter_size) in enumerate({runs!r}):
    os.environ["MLSL_NUM_SERVERS"] = str(servers)
    run = Run(w, clip=clip, iter_size=iter_size, comm=comm)
    run.strategy.record(True)
    run.steps()
    events = run.strategy.events()
    assert len(events) == STEPS * len(run.buckets), len(events)
    assert all(e.ready <= e.start <= e.reduced <= e.end for e in events)
    reports = w.gather((run.digest(), run.weights.tobytes()))
    if w.rank == 0:
        assert len({{digest for digest, _ in reports}}) == 1, "ranks differ"
        weights = np.frombuffer(reports[0][1], np.float32)
        scale = iter_size  # see test_clipping_is_of_the_sum_over_micro_batches
        # Six steps of rate 0.1, 0.05, ...: the learning rates add up to 0.245, momentum makes at most ten times that.
        tolerance = 2.45 * 2**-8 * 2 if "BF16" in comm else 1e-6
        np.testing.assert_allclose(weights, reference(clip / scale), rtol=1e-5, atol=tolerance)
        print(number, type(run.strategy).__name__, reports[0][0], flush=True)
    run.strategy.close()
w.close()
print("closed")
"""
# Number of servers, fields of comm_param, clip_gradients, iter_size.
SERVERS = [(servers, "", clip, micro) for clip, micro in ((0.0, 1), (3.0, 2)) for servers in (0, 1, 2, 4)]
SMALL, FIRST = "chunk_mb: 0.01", "chunk_mb: 0.01 priority: true"
PRIORITIES = [(*way, clip, 1) for clip in (0.0, 3.0) for way in ((2, SMALL), (2, FIRST), (1, FIRST))]
ROUNDED = ["compression: BF16", "compression: BF16 error_feedback: true priority: true"]
COMPRESSED = [(servers, comm, 0.0, 1) for servers in (0, 2) for comm in ROUNDED]
DIRECT = [(servers, comm, 0.0, 1) for comm in ("", "compression: BF16 chunk_mb: 0.02") for servers in (0, 1, 2)]
HIERARCHICAL = [(2, f"algorithm: HIERARCHICAL {comm}", 3.0, 1) for comm in ("", "priority: true chunk_mb: 0.02")]
CLIPPED, PLAIN = (2, "", 3.0, 1), (2, "", 0.0, 1)
RUNS = {  # ranks, hosts -> what is run there
    (2, 1): (*SERVERS, *PRIORITIES, *COMPRESSED),
    (3, 1): (CLIPPED,),
    (4, 1): (PLAIN, *PRIORITIES),
    (3, 3): tuple(DIRECT),
    (4, 2): tuple(HIERARCHICAL),
}


@functools.cache
def launched(ranks: int, hosts: int, runs: tuple):
    """Does these runs one after the other, because starting the ranks takes longer; returns the finished process."""
    return run_ranks(ranks, RANKS.format(runs=runs), timeout=120, environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})


def strategies(ranks: int, runs: list[tuple], hosts: int = 1, among: tuple = ()) -> list[list[str]]:
    """Compares runs with the reference, on the ranks themselves.

    Args:
        among: all runs that the same ranks do; those of RUNS if it is empty.

    Returns:
        The name of the strategy and the digest of the final weights, for each of `runs`.
    """
    among = among or RUNS[ranks, hosts]
    done = launched(ranks, hosts, among)
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {among[int(line[0])]: line[1:] for line in lines if line[0] != "closed"}
    assert all(run in found for run in runs), done.stdout + done.stderr
    return [found[run] for run in runs]


@pytest.mark.mpi
@pytest.mark.parametrize("runs", [SERVERS[:4], SERVERS[4:]], ids=["plain", "clipped, two micro-batches"])
def test_two_ranks_equal_one_with_any_number_of_servers(runs):
    results = strategies(2, runs)
    assert [name for name, _ in results] == ["Blocking", "Servers", "Servers", "Servers"]
    assert len({digest for _, digest in results}) == 1, "the bits depend on the number of servers"


@pytest.mark.mpi
def test_three_ranks_with_clipping():
    assert strategies(3, [CLIPPED])[0][0] == "Servers"


@pytest.mark.mpi
def test_two_runs_have_the_same_bits():
    assert strategies(4, [PLAIN]) == strategies(4, [PLAIN], among=(PLAIN,))


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("runs", [PRIORITIES[:3], PRIORITIES[3:]], ids=["plain", "clipped"])
def test_the_same_bits_with_and_without_priority(count, runs):
    results = strategies(count, runs)
    assert results[0] == results[1] == results[2]


@pytest.mark.mpi
@pytest.mark.parametrize("run", COMPRESSED, ids=str)
def test_bf16_reductions(run):
    assert strategies(2, [run])


KEPT = """
from engine.comm.world import world
from tests.comm.gradients import *
w = world()
run = Run(w, comm="compression: BF16 chunk_mb: 0.02")
run.strategy.keep_gradients = True
run.steps()
for bucket in run.buckets:
    for one in bucket.ranges:
        kept = run.gradients[one.begin : one.end]
        sums = w.size * run.gradient(STEPS - 1, 0, 1)[one.begin : one.end]
        np.testing.assert_allclose(kept, sums, rtol=0, atol=2**-7 * np.abs(sums).max())
run.strategy.close()
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_whoever_reads_the_reduced_gradients_finds_them():
    done = run_ranks(2, KEPT, timeout=60, environ={"MLSL_NUM_SERVERS": "2"})
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("runs", [DIRECT[:3], DIRECT[3:]], ids=["plain", "bfloat16"])
def test_hosts_that_exchange_shares_directly(runs):
    results = strategies(3, runs, hosts=3)
    assert len({digest for _, digest in results}) == 1, "the bits depend on the number of servers"


@pytest.mark.mpi
@pytest.mark.parametrize("run", HIERARCHICAL, ids=str)
def test_hierarchical(run):
    assert strategies(4, [run], hosts=2)[0][0] == "Servers"


@pytest.mark.mpi
@pytest.mark.parametrize(("count", "hosts"), RUNS)
def test_the_ranks_end_well(count, hosts):
    done = launched(count, hosts, RUNS[count, hosts])
    assert done.returncode == 0 and done.stdout.count("closed") == count, done.stderr


PRIORITY = """
import random, time
from engine.comm.world import world
from tests.comm.gradients import *
w = world()
run = Run(w, comm="priority: true chunk_mb: 0.01")
last = run.buckets[-1].index
run.strategy.record(True)

# The others hold bucket 0 back, which rank 0 has chosen; meanwhile the rest becomes ready everywhere.
run.strategy.start(Step(0, 0.1))
for bucket in run.buckets if w.rank == 0 else run.buckets[1:]:
    run.queue.ready(bucket.index)
    if bucket.index == 0:
        time.sleep(0.3)  # rank 0's server has chosen it
w.barrier()
if w.rank > 0:
    run.queue.ready(0)
run.strategy.wait_all()
order = [event.bucket for event in sorted(run.strategy.events(), key=lambda event: event.reduced)]
assert order == list(range(last, -1, -1)), order  # bucket 0 has 2 chunks: all others overtake the second

# Whenever buckets become ready on each rank, all are reduced.
for step in range(1, 25):
    generator = random.Random(100 * step + w.rank)
    run.strategy.start(Step(step, 0.1))
    for bucket in run.buckets:
        time.sleep(generator.choice([0, 0, 1e-3, 4e-3]))
        run.queue.ready(bucket.index)
    run.strategy.backward_done()
    for bucket in reversed(run.buckets):
        run.queue.wait_done(bucket.index)
assert len({{digest for digest in w.gather(run.digest()) or [0]}}) == 1
run.strategy.close()
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("count", "servers"), [(2, 1), (3, 1)])
def test_what_the_next_forward_needs_first_overtakes(count, servers):
    done = run_ranks(count, PRIORITY.format(), timeout=60, environ={"MLSL_NUM_SERVERS": str(servers)})
    assert done.returncode == 0 and done.stdout.count("fine") == count, done.stderr


def failing(program: str, environ: dict[str, str] | None = None) -> str:
    """Runs `program` on two ranks, of which one has to abort; returns stderr."""
    frame = """
from engine.comm.world import world
from tests.comm.gradients import *
from engine.errors import EngineError
w = world()
try:
{body}
except EngineError as error:
    w.abort(str(error))
w.close()
"""
    body = "\n".join("    " + line for line in program.strip().splitlines())
    done = run_ranks(2, frame.format(body=body), timeout=60, environ=environ)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.strip()


@pytest.mark.mpi
def test_an_error_in_a_server_reaches_the_solver():
    program = """
run = Run(w)
def fail(values, residual): raise OSError("link down")
if w.rank == 1: run.strategy.channels[1].allreduce = fail
run.steps()
"""
    assert failing(program, {"MLSL_NUM_SERVERS": "2"}) == "communication server 1: link down"


@pytest.mark.mpi
def test_ranks_that_disagree_about_servers():
    program = """
import os
os.environ["MLSL_NUM_SERVERS"] = str(1 + w.rank)
run = Run(w)
"""
    message = failing(program)
    what = "communication settings (comm_param, MLSL_NUM_SERVERS) or the gradient buckets"
    assert message.startswith(f"ranks 0 and 1 differ in {what}: ")
    assert len(message.splitlines()) == 1


@pytest.mark.mpi
def test_a_core_that_does_not_exist():
    message = failing("run = Run(w)", {"MLSL_NUM_SERVERS": "1", "MLSL_SERVER_AFFINITY": "1000"})
    assert message == (
        "comm_param { affinity } or MLSL_SERVER_AFFINITY: core 1000 cannot be used on this host (Invalid argument)"
    )


@pytest.mark.mpi
def test_servers_sit_where_they_were_told():
    program = """
import os
run = Run(w)
run.steps(1)
seats = {t.name: os.sched_getaffinity(t.native_id) for t in run.strategy.servers}
assert seats == {"comm-server-0": {1 - w.rank}}, seats
assert len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(os.getppid()))
run.strategy.close()
w.abort("seated")
"""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    assert failing(program, {"MLSL_NUM_SERVERS": "1", "MLSL_SERVER_AFFINITY": "1,0"}) == "seated"
