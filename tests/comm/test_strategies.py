"""Every strategy on several ranks equals the update that one rank would have computed."""

import hashlib
import os

import numpy as np
import pytest
from google.protobuf import text_format

from engine import proto
from engine.comm.buckets import make_buckets, parameter_ranges
from engine.comm.factory import settings_of, strategy_of
from engine.comm.strategies.strategy import Step
from engine.comm.world import World
from engine.errors import CommError
from engine.host import _core
from tests.mpi import run_ranks

SIZES = [5000, 37, 12000, 9, 60000, 640]  # the large ones are cut, the small ones share
STEPS = 6


class Run:
    """A net of SIZES without its layers: gradients come from a seeded generator, their mean over ranks is known."""

    def __init__(self, world: World, clip: float = 0.0, iter_size: int = 1, threads: int = 1, comm: str = ""):
        self.world, self.clip, self.iter_size = world, clip, iter_size
        parameters, offset = [], 0
        for i, size in enumerate(SIZES):
            parameters.append((f"p{i}", offset, size))
            offset += -(-size // 16) * 16
        self.buckets = make_buckets(parameters, bucket_bytes=40_000)
        self.weights = np.linspace(-1, 1, offset, dtype=np.float32)
        self.gradients = np.zeros(offset, np.float32)
        self.history = np.zeros(offset, np.float32)
        ranges = parameter_ranges(self.buckets, {"p1": (2.0, 0.0)})
        self.queue = _core.ReadyQueue(len(self.buckets))
        constants, arrays = {"momentum": 0.9}, (self.weights, self.gradients, [self.history])
        updater = _core.Updater("SGD", *arrays, ranges, constants, weight_decay=0.01)
        settings = settings_of(world, text_format.Parse(comm, proto.CommParameter()))
        how = self.queue, updater, self.buckets, self.gradients, settings
        chosen, state = strategy_of(world, settings, self.buckets), [self.weights, self.history]
        self.strategy = chosen(world, *how, threads=threads, state=state)

    def gradient(self, step: int, part: int, parts: int) -> np.ndarray:
        """The mean over slice `part` of 12 samples; the mean of all slices is the same for any `parts`."""
        samples = [np.random.default_rng((step, i)).standard_normal(self.gradients.size) for i in range(12)]
        return np.mean(samples[part * 12 // parts : (part + 1) * 12 // parts], axis=0)

    def steps(self, steps: int = STEPS) -> None:
        for step in range(steps):
            for bucket in reversed(self.buckets):
                self.queue.wait_done(bucket.index)
            parts = self.world.size * self.iter_size
            # Micro-batch m of rank r; the whole is the same for any number of ranks.
            self.gradients[:] = sum(
                self.gradient(step, self.world.rank * self.iter_size + micro, parts) for micro in range(self.iter_size)
            )
            self.strategy.start(Step(step, 0.1 / (step + 1), self.iter_size, self.clip))
            for bucket in self.buckets:
                self.queue.ready(bucket.index)
            self.strategy.backward_done()
        self.strategy.wait_all()

    def constants(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every float: what its rate is multiplied by, its weight decay, and whether it is a parameter's."""
        count = self.weights.size
        rate, decay, used = np.ones(count), np.full(count, 0.01), np.zeros(count, bool)
        for bucket in self.buckets:
            for one in bucket.ranges:
                used[one.begin : one.end] = True
                if one.name == "p1":
                    rate[one.begin : one.end], decay[one.begin : one.end] = 2, 0
        return rate, decay, used

    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes() + self.history.tobytes()).hexdigest()


def reference(clip: float = 0.0) -> np.ndarray:
    """The same run in float64, in NumPy."""
    run = Run(World())
    weights, history = run.weights.astype(np.float64), np.zeros(run.weights.size)
    rate, decay, used = run.constants()
    for step in range(STEPS):
        gradient = np.where(used, run.gradient(step, 0, 1), 0)
        norm = np.sqrt((gradient**2).sum())
        gradient *= clip / norm if 0 < clip < norm else 1
        history = 0.9 * history + 0.1 / (step + 1) * rate * (gradient + decay * weights)
        weights = np.where(used, weights - history, weights)
    return weights


@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_one_rank(clip):
    run = Run(World(), clip=clip, threads=2)
    run.steps()
    np.testing.assert_allclose(run.weights, reference(clip), rtol=1e-5, atol=1e-6)
    run.strategy.close()


def test_clipping_is_of_the_sum_over_micro_batches():
    """Caffe's order: the norm of the accumulated gradients first, iter_size after."""
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
from engine.comm.world import world
from tests.comm.test_strategies import *
w = world()
for servers, comm in {runs!r}:
    os.environ["MLSL_NUM_SERVERS"] = str(servers)
    run = Run(w, clip={clip}, iter_size={iter_size}, comm=comm)
    run.strategy.record(True)
    run.steps()
    events = run.strategy.events()
    assert len(events) == STEPS * len(run.buckets), len(events)
    assert all(e.ready <= e.start <= e.reduced <= e.end for e in events)
    reports = w.gather((run.digest(), run.weights.tobytes()))
    if w.rank == 0:
        assert len({{digest for digest, _ in reports}}) == 1, "ranks differ"
        weights = np.frombuffer(reports[0][1], np.float32)
        scale = {iter_size}  # see test_clipping_is_of_the_sum_over_micro_batches
        np.testing.assert_allclose(weights, reference({clip} / scale), rtol=1e-5, atol={tolerance})
        print(type(run.strategy).__name__, reports[0][0], flush=True)
    run.strategy.close()
w.close()
"""


def ranks(
    count: int, *runs: tuple[int, str], clip: float = 0.0, iter_size: int = 1, tolerance=1e-6, hosts: int = 1
) -> list[list[str]]:
    """Compares each run with the reference: so many servers, and fields of comm_param. Returns the name of its strategy
    and the digest of what has become of the weights."""
    program = RANKS.format(runs=runs, clip=clip, iter_size=iter_size, tolerance=tolerance)
    done = run_ranks(count, program, timeout=90, environ={"MPIR_CVAR_NUM_CLIQUES": str(hosts)})
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(runs)
    return found


@pytest.mark.mpi
@pytest.mark.parametrize(("clip", "iter_size"), [(0.0, 1), (3.0, 2)])
def test_two_ranks_equal_one_with_any_number_of_servers(clip, iter_size):
    results = ranks(2, *((servers, "") for servers in (0, 1, 2, 4)), clip=clip, iter_size=iter_size)
    assert [name for name, _ in results] == ["Blocking", "Servers", "Servers", "Servers"]
    assert len({digest for _, digest in results}) == 1, "the bits depend on the number of servers"


@pytest.mark.mpi
def test_three_ranks_with_clipping():
    assert ranks(3, (2, ""), clip=3.0)[0][0] == "Servers"


@pytest.mark.mpi
def test_two_runs_have_the_same_bits():
    assert ranks(4, (2, "")) == ranks(4, (2, ""))


@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_the_same_bits_with_and_without_priority(count, clip):
    small, first = "chunk_mb: 0.01", "chunk_mb: 0.01 priority: true"
    results = ranks(count, (2, small), (2, first), (1, first), clip=clip)
    assert results[0] == results[1] == results[2]


@pytest.mark.mpi
@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("comm", ["compression: BF16", "compression: BF16 error_feedback: true priority: true"])
def test_bf16_reductions(servers, comm):
    # Six steps of rate 0.1, 0.05, ...: the learning rates add up to 0.245, momentum makes at most ten times that.
    assert ranks(2, (servers, comm), tolerance=2.45 * 2**-8 * 2)


KEPT = """
from engine.comm.world import world
from tests.comm.test_strategies import *
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
@pytest.mark.parametrize("comm", ["", "compression: BF16 chunk_mb: 0.02"])
def test_hosts_that_exchange_shares_directly(comm):
    tolerance = 2.45 * 2**-8 * 2 if comm else 1e-6
    results = ranks(3, *((servers, comm) for servers in (0, 1, 2)), tolerance=tolerance, hosts=3)
    assert len({digest for _, digest in results}) == 1, "the bits depend on the number of servers"


@pytest.mark.mpi
@pytest.mark.parametrize("comm", ["", "priority: true chunk_mb: 0.02"])
def test_hierarchical(comm):
    assert ranks(4, (2, f"algorithm: HIERARCHICAL {comm}"), clip=3.0, hosts=2)[0][0] == "Servers"


PRIORITY = """
import random, time
from engine.comm.world import world
from tests.comm.test_strategies import *
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
    """Runs `program` on two ranks of which some rank aborts; stderr."""
    frame = """
from engine.comm.world import world
from tests.comm.test_strategies import *
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
