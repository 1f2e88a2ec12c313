"""comm_param { elastic { } }: a run goes on when some of its ranks die."""

import re

import pytest

from engine import proto
from engine.comm.world import World
from engine.errors import CommError, ConfigError
from engine.host.launch import Launch
from engine.solver import elastic
from engine.solver.calendar import Calendar
from engine.solver.elastic_param import divide_micro_batches
from tests.mpi import outliving, run_ranks
from tests.solver.harness import (
    DIGITS,
    assert_refused,
    different,
    digits_net,
    distance,
    in_files,
    make_solver,
    solve,
)

HOLD, SHRINK = proto.ElasticParameter.HOLD, proto.ElasticParameter.SHRINK
ITERATIONS = 60

# Rank R kills itself in iteration DEATHS[R], or at the place that DEATHS[R] names. No layer's random numbers depend on
# which rank computes.
PROGRAM = """
import os, signal, sys
from engine.comm.world import world
from engine.config import read_solver
from engine.report.log import set_up
from engine.report.observer import Observer
from engine.solver import plan, solver as solver_module
from engine.solver.solver import Solver
from engine.solver.resume import take_prefix

class Death(Observer):
    def wants_trace(self, iteration):
        return True

    def step(self, record):
        die_if(record.iteration)

    def end(self, trace):
        die_if("the end")
        world().gather(number)
        die_if("after a gather of the end")
        print("end", number, trace is not None, flush=True)

def die_if(place):
    if %(deaths)r.get(number) == place:
        os.kill(os.getpid(), signal.SIGKILL)

def log_skipped(world, feeders):
    die_if("the last gather")
    plan.log_skipped(world, feeders)
    die_if("after the last gather")

solver_module.log_skipped = log_skipped
number = world().rank
set_up(number)
config = read_solver("%(folder)s/solver.prototxt")
if number == 0:
    take_prefix(config, world())
solver = Solver(config, world(), observers=[Death()])
assert solver.solve()
solver.close()
world().close()
print("fine", number, world().size, solver.state.samples_seen, flush=True)
"""


def files(folder, text, batch=8):
    """Writes a net and a solver of the digits, with test, snapshots and these fields."""
    folder.mkdir(exist_ok=True)
    (folder / "net.prototxt").write_text(digits_net(batch))
    (folder / "solver.prototxt").write_text(
        f'net: "{folder}/net.prototxt" base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 max_iter: {ITERATIONS} '
        f'display: 20 snapshot: 20 test_iter: 2 test_interval: 25 snapshot_prefix: "{folder}/net" random_seed: 3 {text}'
    )


def survived(folder, deaths, text, ranks=4, ends=(1,)):
    """Trains on ranks, some of which die.

    Args:
        deaths: rank -> the iteration in which it dies, or the name of a place.
        ends: how often each of the others may call its observers' end(), once at most with the trace.

    Returns:
        (rank, iteration, ranks left, iteration gone back to, rest of the line) of each death that the log tells of,
        the number of samples seen, the log.
    """
    files(folder, text)
    program = PROGRAM % {"deaths": deaths, "folder": folder}
    done = run_ranks(ranks, program, timeout=120, options=outliving())
    left = ranks - len(deaths)
    assert done.stdout.count("fine") == left, done.stdout + done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("end")]
    for rank in set(range(ranks)) - set(deaths):
        assert sum(line[1] == str(rank) for line in lines) in ends, done.stdout
        assert sum(line[1:] == [str(rank), "True"] for line in lines) <= 1, done.stdout
    assert done.returncode == 0, done.stderr[-3000:]
    log = done.stderr
    samples = {line.split()[3] for line in done.stdout.splitlines() if line.startswith("fine")}
    assert len(samples) == 1
    told = re.findall(
        r"Rank (.*) died in iteration (\d+); the others \((\d)\) go on after iteration (\d+), (.*)", done.stderr
    )
    took = [float(seconds) for *_, rest in told for seconds in re.findall(r"\(([\d.]+) s\)", rest)]
    assert len(took) == len(told) and max(took, default=0) < 5, took
    return told, int(samples.pop()), log


@pytest.mark.mpi
@pytest.mark.parametrize("servers", [0, 2])
def test_a_batch_that_can_be_divided_is_held(tmp_path, servers):
    """Two of four ranks die one after the other, rank 0 first. The weights at the end, and in the snapshot that another
    rank has written, are those of one rank that takes all samples, but for the order of additions."""
    comm = f"elastic {{ keep_every: 5 }} servers: {servers} drift_check: 10"
    text = f"clip_gradients: 20 comm_param {{ {comm} }} iter_size: 3"
    told, samples, _ = survived(tmp_path / "four", {0: 23, 2: 41}, text)
    assert [line[:4] for line in told] == [("0", told[0][1], "3", "20"), ("2", told[1][1], "2", "40")]
    assert "3 x 8 x iter_size 4 samples" not in told[0][4] and "3 x 8 x iter_size 4, at 1 of the rate" in told[0][4]
    assert "2 x 8 x iter_size 6, at 1 of the rate" in told[1][4]
    assert samples == ITERATIONS * 4 * 3 * 8
    alone = (
        'base_lr: 0.02 lr_policy: "poly" power: 1 momentum: 0.9 max_iter: 60 snapshot: 20 random_seed: 3 iter_size: 12'
    )
    (tmp_path / "alone").mkdir()
    solve(f"{alone} iter_size: 12 clip_gradients: 80", digits_net(8), tmp_path / "alone")
    for iteration in (40, ITERATIONS):
        assert distance(in_files(tmp_path / "four", iteration), in_files(tmp_path / "alone", iteration)) < 2e-5
    # The lock went from the dead rank to a living one, which has removed it.
    assert not list((tmp_path / "four").glob(".*"))


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("scaling", "full", "share"),
    [
        ("", 0.02, 0.75),
        ("lr_scaling { base_batch: 8 cap: 0.07 }", 0.07, 0.06 / 0.07),  # the rule would give 0.08
    ],
)
def test_a_smaller_batch_takes_a_smaller_rate(tmp_path, scaling, full, share):
    text = f"{scaling} comm_param {{ elastic {{ batch: SHRINK keep_every: 10 }} }} snapshot_after_train: true"
    told, samples, log = survived(tmp_path / "x", {3: 31}, text)
    assert [line[0] for line in told] == ["3"] and f"3 x 8 x iter_size 1, at {share:g} of the rate" in told[0][4]
    assert samples == 30 * 32 + 30 * 24
    rates = dict(re.findall(r"Iteration (\d+), lr = ([\d.]+)", log))
    assert float(rates["20"]) == pytest.approx(full * 40 / 60, rel=1e-5)
    assert float(rates["40"]) == pytest.approx(share * full * 20 / 60, rel=1e-5)


@pytest.mark.mpi
def test_ranks_that_die_together_and_one_that_is_left(tmp_path):
    told, samples, _ = survived(tmp_path / "x", {1: 33, 2: 33, 3: 33}, "comm_param { elastic { } }")
    assert told[-1][2] == "1" and "1 x 8 x iter_size 4, at 1 of the rate" in told[-1][4]
    assert samples == ITERATIONS * 32


@pytest.mark.mpi
def test_a_death_in_the_last_gather_is_outlived(tmp_path):
    """Only the rank that receives from the dead one notices its death; all go back."""
    told, samples, _ = survived(tmp_path / "x", {2: "the last gather"}, "comm_param { elastic { keep_every: 8 } }", 3)
    assert [line[:4] for line in told] == [("2", str(ITERATIONS), "2", "56")] and samples == 56 * 24 + 4 * 16


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("rank", "place", "ends"), [(2, "the end", (1, 2)), (0, "the end", (2,)), (0, "after a gather of the end", (2,))]
)
def test_a_death_while_observers_tell_of_the_end(tmp_path, rank, place, ends):
    """A rank that waits for the dead one calls end() again together with the others. So does the rank that speaks in
    place of a dead rank 0."""
    text = "comm_param { elastic { keep_every: 8 } }"
    told, samples, log = survived(tmp_path / "x", {rank: place}, text, 3, ends)
    assert told == [] and samples == ITERATIONS * 24 and log.count("Optimization Done.") >= 1


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 2])
def test_a_death_where_all_have_come_to_the_end_changes_nothing(tmp_path, rank):
    deaths, text = {rank: "after the last gather"}, "comm_param { elastic { keep_every: 8 } }"
    told, samples, log = survived(tmp_path / "x", deaths, text, 3)
    assert told == [] and samples == ITERATIONS * 24 and log.count("Optimization Done.") == 1
    assert not list((tmp_path / "x").glob(".*"))


@pytest.mark.mpi
def test_with_too_few_the_run_ends(tmp_path):
    files(tmp_path, "comm_param { elastic { min_ranks: 3 } }")
    program = PROGRAM % {"deaths": {0: 33, 1: 44}, "folder": tmp_path}
    done = run_ranks(4, program, timeout=120, options=outliving())
    assert "fine" not in done.stdout and done.returncode != 0
    assert "2 ranks are left, and comm_param.elastic.min_ranks is 3: the run ends; --resume auto goes on" in done.stderr


@pytest.mark.mpi
def test_where_mpi_ends_all_ranks_with_one_the_log_says_so(tmp_path):
    """Every MPI library does so unless its mpiexec is told otherwise. Then no copies of the state are kept."""
    files(tmp_path / "elastic", "comm_param { elastic { } }")
    done = run_ranks(2, ["-m", "engine", "train", "--solver", str(tmp_path / "elastic/solver.prototxt")], timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("a rank that dies ends this run all the same (--resume auto goes on)") == 1
    assert "mpiexec has --with-ft ulfm" in done.stderr


def test_snapshots_go_on_under_the_prefix_of_the_ranks_that_are_left(tmp_path):
    world = World()
    solver = make_solver(f'snapshot_prefix: "{tmp_path}/%#_of_%*" snapshot_keep: 1', digits_net(), world=world)
    world.size = 3
    solver.snapshots.take_over()
    solver.snapshots.kept.add(10, None)
    assert f"{tmp_path}/0_of_3_iter_10.caffemodel" in solver.snapshots.kept.add(20, None)
    solver.close()


def test_one_rank_needs_nobody(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    solve("comm_param { elastic { } }", digits_net(), tmp_path / "a")
    solve("", digits_net(), tmp_path / "b")
    assert different(in_files(tmp_path / "a", 20), in_files(tmp_path / "b", 20)) == []


@pytest.mark.parametrize("size, words", [(1, "there is 1 rank, and"), (2, "there are 2 ranks, and")])
def test_a_stage_does_not_begin_with_too_few(size, words, monkeypatch):
    """So few are left if ranks die at the end of the stage before."""
    monkeypatch.setattr(elastic, "detect", lambda: Launch("mpiexec", 0, 3, 0, 3))
    world = World()
    solver = make_solver("comm_param { elastic { min_ranks: 3 } }", digits_net(), world=world)
    world.size = size
    with pytest.raises(CommError, match=rf"{words} comm_param\.elastic\.min_ranks is 3: start as many, with --resume"):
        elastic.make(solver)
    world.size = 3
    assert elastic.make(solver) is None  # None: a World of one process cannot go on without a rank

    world.size = 1
    with pytest.raises(CommError, match="there is 1 rank, and"):
        solver.solve()
    solver.close()


def test_more_than_are_started_is_an_error_of_the_solver():
    """A restart with as many ranks would fail again, so the supervisor must not try one."""
    words = r"comm_param\.elastic\.min_ranks: expected as many ranks as are started, 1, at most, got 3"
    solver = make_solver("comm_param { elastic { min_ranks: 3 } }", digits_net())
    with pytest.raises(ConfigError, match=words):
        solver.solve()
    solver.close()


@pytest.mark.parametrize(
    "micro_batches, ranks, batch, iter_size, found",
    [
        (4, 2, HOLD, 1, (2, 1.0)),
        (4, 3, HOLD, 1, (1, 0.75)),
        (12, 3, HOLD, 3, (4, 1.0)),
        (12, 5, HOLD, 3, (2, 10 / 12)),
        (12, 2, SHRINK, 3, (3, 0.5)),
        (2, 1, HOLD, 1, (2, 1.0)),
    ],
)
def test_how_a_batch_is_divided(micro_batches, ranks, batch, iter_size, found):
    division = divide_micro_batches(micro_batches, ranks, batch, iter_size)
    assert (division.iter_size, division.share) == found


def test_samples_are_counted_on_in_other_batches():
    calendar = Calendar(24, 100, begun=30, before=30 * 32)
    assert calendar.samples(30) == 960 and calendar.samples(35) == 960 + 5 * 24
    due = [iteration for iteration in range(30, 60) if calendar.is_due(iteration, 0, 1.0)]
    assert due == [31, 35, 40, 44, 48, 52, 56]  # the last iterations before 1,000, 1,100, ... 1,600 samples


@pytest.mark.parametrize(
    "text, words",
    [
        ("comm_param { elastic { keep_every: 0 } }", "elastic.keep_every: expected 1 or more, got 0"),
        ("comm_param { elastic { min_ranks: -2 } }", "elastic.min_ranks: expected 1 or more, got -2"),
        ("comm_param { elastic { } mode: ASYNC }", "comm_param.elastic does not go together with mode: ASYNC"),
        ("comm_param { elastic { } mode: LOCAL }", "comm_param.elastic does not go together with mode: LOCAL"),
        ("comm_param { elastic { } shard_updates: true }", "elastic does not go together with shard_updates, of which"),
        ("comm_param { elastic { } autotune: true }", "comm_param.elastic does not go together with autotune"),
        ("comm_param { elastic { } } batch_growth { stepvalue: 5 }", "elastic does not go together with batch_growth"),
    ],
)
def test_what_does_not_go_together(text, words):
    assert_refused(text, words)


def test_sources_of_single_ranks_are_refused(tmp_path):
    """If a rank died, the samples that only it can read would be lost."""
    (tmp_path / "part0").symlink_to(DIGITS / "digits_train_lmdb")
    net = digits_net().replace(f"{DIGITS}/digits_train_lmdb", f"{tmp_path}/part%#")
    own = f'layer {{ name: "own" type: "Data" top: "own" data_param {{ source: "{tmp_path}/part%#" batch_size: 16 }} }}'
    silence = 'layer { name: "silence" type: "Silence" bottom: "own" }'
    for text in (net, digits_net() + own + silence):
        with pytest.raises(ConfigError, match=r"net\.prototxt:1:\d+: .* with data of which each rank has a source of"):
            make_solver("comm_param { elastic { } }", text)
