"""Asynchronous SGD (`comm_param { mode: ASYNC }`): ranks wait for nobody beyond the bound of staleness."""

import os
import re
import signal

import numpy as np
import pytest

from engine.solver.update import remembered
from engine.weights import read_solverstate
from tests.solver.harness import all_fine, assert_refused, digits_net, in_files, make_solver, solve
from tests.solver.test_restart import start, train
from tests.watchdog.test_dead_rank import pid_of_rank

COMMON = "max_iter: 6 momentum: 0.9 weight_decay: 0.001 base_lr: 0.02 random_seed: 3 "
NAMES = {"COMMON": COMMON}  # of programs that ranks run
OPTIONS = {
    "sgd": "iter_size: 2 warmup_iter: 3 warmup_start_lr: 0.002 momentum_correction: true",
    "still": 'warmup_policy: "constant" warmup_start_lr: 0 warmup_iter: 3 momentum_correction: true',
    "schedule": 'lr_policy: "multistep" gamma: 0.5 stepvalue: 3 weight_decay_policy: "poly" momentum_policy: "poly"',
    "adamw": 'type: "Adam" base_lr: 0.001 delta: 1e-4 weight_decay: 0.1 decoupled_weight_decay: true',
}


EQUAL = """
from engine.comm.world import world
from tests.solver.harness import *
world = world()

def train(comm, text):
    text = with_defaults(text, COMMON) + " comm_param { bucket_mb: 0.006 chunk_mb: 0.003 " + comm + " }"
    solver = solve(text, digits_net(8), world=world)
    assert solver.iteration == 6 and solver.state.samples_seen == 6 * 8 * world.size * solver.iter_size
    assert solver.optimizer.in_step == (not comm)
    return learned(solver)

for name, options in OPTIONS.items():
    whole, stale = train("", options), train("mode: ASYNC max_staleness: 0", options)
    assert world.rank or distance(whole, stale) < 1e-5, (name, distance(whole, stale))
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_without_staleness_it_is_synchronous():
    """Weights differ by the order of additions only, with schedules and rules whose constants change at each update."""
    all_fine(3, EQUAL, names={"OPTIONS": OPTIONS, **NAMES})


def test_one_rank_is_synchronous():
    """The weights have the same bits as in synchronous training."""
    one, other = (solve(f"{COMMON} {mode}", digits_net()) for mode in ("", "comm_param { mode: ASYNC }"))
    assert one.optimizer.weights.tobytes() == other.optimizer.weights.tobytes()


SLOW = """
import sys, time
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
world = world()
set_up(world.rank)
text = COMMON.replace("max_iter: 6", "max_iter: {iterations}")
solver = make_solver(text + " comm_param {{ mode: ASYNC max_staleness: {bound} }}", digits_net(8), world=world)
steps = []

def slow():
    steps.append(solver.iteration)
    time.sleep(0.6 if world.rank == 1 else 0)

solver.on_gradients = slow
assert solver.solve() and solver.iteration == {iterations}
counts = world.gather(len(steps))
if counts:
    print("counts", *counts, file=sys.stderr, flush=True)
solver.close()
world.close()
print("fine", flush=True)
"""


def counts(bound: int, iterations: int) -> tuple[list[int], list[int]]:
    """Trains on two ranks, of which the second is slow. Returns how many gradients each has computed, and which values
    of staleness came up."""
    told = all_fine(2, SLOW.format(bound=bound, iterations=iterations), names=NAMES)
    line = re.search(r"Staleness of gradients, in updates: (.*); mean", told)
    assert line, told
    found = re.search(r"counts (\d+) (\d+)", told)
    assert found
    return [int(each) for each in found.groups()], [int(stale) for stale in re.findall(r"(\d+): ", line[1])]


@pytest.mark.mpi
def test_a_slow_rank_holds_nobody_up():
    (fast, slow), staleness = counts(bound=4, iterations=20)
    assert fast + slow == 40 and fast > 2 * slow and max(staleness) == 4
    assert counts(bound=0, iterations=4) == ([4, 4], [0])


SINGLE = """
from engine.comm.world import world
from engine.comm.buckets import make_buckets, parameter_ranges
from engine.comm.factory import settings_of, strategy_of
from engine.comm.shares import ShardedWeights, Shares
from engine.comm.strategies.strategy import Step
from engine.host import _core
from google.protobuf import text_format
from engine import proto
import numpy as np
w = world()
COUNT = 1000
for corrects in (False, True):
    text = f"mode: ASYNC max_staleness: 4 staleness_lr: {str(corrects).lower()} chunk_mb: 0.001"
    settings = settings_of(w, text_format.Parse(text, proto.CommParameter()))
    buckets = make_buckets([("p", 0, COUNT)], 4096)
    shares = Shares(buckets, settings.chunk_bytes, w.rank, w.size)
    weights, gradients = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
    masters, sums, history = (np.zeros(shares.count, np.float32) for _ in range(3))
    sharded = ShardedWeights(shares, weights, masters, sums)
    ranges = parameter_ranges(buckets, sharded=sharded)
    updater = _core.Updater("SGD", masters, sums, [history], ranges, {"momentum": 0.0})
    queue = _core.ReadyQueue(len(buckets))
    strategy = strategy_of(w, settings, buckets)(w, queue, updater, buckets, gradients, settings, sharded=sharded)
    strategy.step_of = lambda updater, iteration: Step(iteration, 1.0)
    pushed = 0

    def push(value):
        gradients[:] = value
        strategy.start(Step(0, 1.0))
        for bucket in buckets:
            queue.ready(bucket.index)
        strategy.wait_all()

    strategy.open(0)
    strategy._until = 3  # what next_iteration() has told all at the meeting
    if w.rank == 0:
        for value in (1, 2, 3, 4):
            push(value)
        assert (weights == -(1 + 2) / 2 - (3 + 4) / 2).all()
    w.barrier()
    if w.rank == 1:
        assert (weights == 0).all()
        push(8)
        assert (weights == -5).all()
    w.barrier()
    if w.rank == 0:
        push(16)
    strategy.settle()
    assert (weights == -5 - ((8 / 2 if corrects else 8) + 16) / 2).all(), weights[:3]
    report = strategy.report()
    assert w.rank or "0: 83.3%, 2: 16.7%; mean 0.33" in report, report
    strategy.close()
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_gradients_that_are_two_updates_old():
    """Four gradients of one rank make two updates; then comes one that was computed with the first weights. Its rate
    may be divided by the staleness, 2."""
    all_fine(2, SINGLE)


LATE = """
import time
from engine.comm.strategies import asynchronous
from engine.comm.world import world
from tests.solver.harness import *
world = world()
if world.rank == 0:
    asynchronous.BUSY_SLEEP = asynchronous.IDLE_SLEEP = 0.1
text = COMMON.replace("max_iter: 6", "max_iter: 12") + "snapshot: 2 comm_param {{ mode: ASYNC }}"
solve(text, digits_net(8), "{folder}", world=world)
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_a_server_that_hears_late_of_a_meeting(tmp_path):
    """The server of rank 0 looks for messages every 0.1 s only, so it hears of meetings after the others."""
    all_fine(2, LATE.format(folder=tmp_path), names=NAMES)


RESUME = """
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
world = world()
set_up(world.rank)
for folder, restore, comm in {runs!r}:
    text = with_defaults(COMMON.replace("max_iter: 6", "max_iter: 60"), "snapshot: 30 test_interval: 20 display: 10")
    text += " test_initialization: false comm_param {{ " + comm + " }}"
    solver = solve(text, digits_net(24 // world.size), folder, restore=restore, world=world)
    assert solver.state.samples_seen == 60 * 24, solver.state.samples_seen
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_snapshots_and_tests(tmp_path):
    """All ranks test and save the same weights. A run goes on from them with any number of ranks, in any mode."""
    for name in ("three", "two", "one", "local"):
        (tmp_path / name).mkdir()
    state = str(tmp_path / "three/net_iter_30.solverstate")
    told = all_fine(3, RESUME.format(runs=[(str(tmp_path / "three"), "", "mode: ASYNC max_staleness: 4")]), names=NAMES)
    assert told.count("Staleness of gradients") == 4, "one for each meeting: at 20, 30, 40, 60"
    shown = [int(number) for number in re.findall(r"Iteration (\d+)(?: \(.*\))?, loss", told)]
    assert shown[0] < 10 and len(shown) >= 5 and shown == sorted(shown) and shown[-1] == 60, shown
    found = re.findall(r"Test net output #\d: accuracy = ([0-9.]+)", told)
    assert len(found) == 3 and float(found[-1]) > 0.25, found
    runs = [(str(tmp_path / "two"), state, "mode: ASYNC"), (str(tmp_path / "local"), state, "mode: LOCAL")]
    all_fine(2, RESUME.format(runs=runs), names=NAMES)
    text = f"{COMMON} max_iter: 60 comm_param {{ mode: ASYNC }}".replace("max_iter: 6 ", "")
    solve(text, digits_net(24), tmp_path / "one", restore=state)
    for name in ("two", "one", "local"):
        assert all(np.isfinite(value).all() for value in in_files(tmp_path / name, 60).values())


OTHER_BATCH = """
from engine.comm.world import world
from tests.solver.harness import *
solver = solve(COMMON + "comm_param {{ mode: ASYNC }}", digits_net(4), restore={state!r}, world=world())
assert solver.state.samples_seen == 3 * 48 + 3 * 8, solver.state.samples_seen
world().close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_samples_of_other_batches_stay_counted(tmp_path):
    """The run goes on from 3 global batches of 48 with batches of another size."""
    solve(COMMON.replace("max_iter: 6", "max_iter: 3"), digits_net(48), tmp_path)
    all_fine(2, OTHER_BATCH.format(state=str(tmp_path / "net_iter_3.solverstate")), names=NAMES)


SOLVER = """
net: "{folder}/train.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 type: "Adam" random_seed: 7 display: 1
max_iter: {iterations} snapshot: {snapshot} snapshot_prefix: "{folder}/net"
comm_param {{ {mode} }}
"""
MODES = {"ASYNC": "mode: ASYNC max_staleness: 2", "LOCAL": "mode: LOCAL sync_every: 4"}


def begin(folder, iterations: int, word: str, snapshot: int = 10, mode: str = "ASYNC"):
    """Starts a run of two ranks; returns its process as soon as it has logged `word`."""
    (folder / "train.prototxt").write_text(digits_net(8))
    fields = {"folder": folder, "iterations": iterations, "snapshot": snapshot, "mode": MODES[mode]}
    (folder / "solver.prototxt").write_text(SOLVER.format(**fields))
    process = start(folder, 2)
    assert process.stderr and any(word in line for line in process.stderr)
    return process


@pytest.mark.mpi
@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_killed(tmp_path, mode):
    process = begin(tmp_path, 10**8, "Iteration 12", mode=mode)
    pid = pid_of_rank(1)
    assert pid
    os.kill(pid, signal.SIGKILL)
    rest = process.communicate(timeout=60)[1]
    last = re.search(r"the last snapshot is \S+_iter_(\d+)", rest)
    assert process.returncode != 0 and last, rest[-2000:]
    status, errors = train(tmp_path, 2, "--resume", "auto", "--set", f"max_iter={int(last[1]) + 20}")
    assert status == 0 and "Going on after iteration" in errors, errors[-2000:]


@pytest.mark.mpi
def test_a_signal_ends_it_long_before_the_next_meeting(tmp_path):
    process = begin(tmp_path, 10**8, "Iteration 12", snapshot=0)
    pid = pid_of_rank(1)
    assert pid
    os.kill(pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "Snapshotting solver state" in rest and "stopped early" in rest, rest[-2000:]


BAD = {
    "comm_param { mode: ASYNC max_staleness: -1 }": "comm_param.max_staleness: expected 0 or more, got -1",
    "comm_param { max_staleness: 4 }": "comm_param.max_staleness is of mode: ASYNC, and the mode is SYNC",
    "comm_param { mode: LOCAL staleness_lr: true }": "comm_param.staleness_lr is of mode: ASYNC, and the mode is LOCAL",
    "comm_param { mode: ASYNC shard_updates: true }": "comm_param.shard_updates does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC compression: BF16 }": "comm_param.compression: BF16 does not go together",
    "comm_param { mode: ASYNC algorithm: HIERARCHICAL }": "comm_param.algorithm does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC priority: true }": "comm_param.priority does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC servers: 0 }": "comm_param.servers: mode: ASYNC has 1, got 0",
    "comm_param { mode: ASYNC } clip_gradients: 1": "clip_gradients does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC } local_lr_auto: true": "local_lr_auto does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC } larc: true": "larc does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC } ema: 0.9": "ema does not go together with mode: ASYNC",
    "comm_param { mode: ASYNC } batch_growth { stepvalue: 4 }": "batch_growth does not go together with mode: ASYNC",
    'comm_param { mode: ASYNC } lr_policy: "plateau" gamma: 0.1 plateau_winsize: 3': "lr_policy 'plateau' does not go",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input(text):
    assert_refused(text, BAD[text])


def test_one_line_about_memory():
    """It counts float32 weights and sums of a rank's share, and room for what comes from the other ranks."""
    solver = make_solver("comm_param { mode: ASYNC } momentum: 0.9", digits_net())
    assert remembered(solver.param, ranks=4) == 1.5
    solver.close()


@pytest.mark.mpi
def test_a_snapshot_before_all_windows_of_losses_are_full(tmp_path):
    """Ranks have then taken different numbers of steps, so their windows of losses differ in length."""
    program = f"""
import time
from engine.comm.world import world
from engine.report.layer_times import LayerTimes
from tests.solver.harness import *
world = world()
text = COMMON.replace("max_iter: 6", "max_iter: 9") + "average_loss: 50 snapshot: 4 clip_gradients: -1 "
solver = make_solver(text + "comm_param {{ mode: ASYNC max_staleness: 16 }}", digits_net(8), "{tmp_path}", world)
solver.observers.append(LayerTimes())
solver.on_gradients = lambda: time.sleep(0.3 * world.rank)
assert solver.solve()
solver.close()
world.close()
print("fine", flush=True)
"""
    all_fine(2, program, names=NAMES)
    state = read_solverstate(tmp_path / "net_iter_4.solverstate")
    # Rank 0 has seen up to 8 gradients by then.
    assert 4 < len(state.recent_loss) <= 8 and np.isfinite(state.recent_loss).all()


HANGUP = """
import os, signal
from engine.comm.world import world
from tests.solver.harness import *
world = world()
text = COMMON + "test_iter: 1 test_interval: 2 snapshot: 2 test_initialization: false comm_param {{ mode: ASYNC }}"
solver = make_solver(text, digits_net(8), "{folder}", world)
done = {{"test": [], "snapshot": []}}

def hung_up(name, method):
    def watched():
        done[name].append(solver.iteration)
        result = method()
        if (name, len(done[name])) in (("test", 1), ("snapshot", 2)):  # on all ranks, so that none takes a step before
            os.kill(os.getpid(), signal.SIGHUP)
        return result
    return watched

for name in done:
    setattr(solver, name, hung_up(name, getattr(solver, name)))
assert solver.solve()
assert done == {{"test": [2, 4, 6], "snapshot": [2, 4, 6]}}, done
solver.close()
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_a_signal_does_not_repeat_what_it_comes_in(tmp_path):
    """It comes in a test or in a snapshot, and ranks then meet at once, without another test or snapshot."""
    all_fine(2, HANGUP.format(folder=tmp_path), names=NAMES)
