"""comm_param { autotune: true }: the first iterations try settings, and train as any others do."""

import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine import proto
from engine.comm.mpi_world import mpi_library
from engine.comm.search import to_json
from engine.comm.settings import CommSettings, Reduction
from engine.comm.world import World
from engine.config import parse_solver
from engine.errors import WeightsError
from engine.solver.tuner import Tuner
from engine.weights import read_solverstate
from tests.mpi import run_ranks
from tests.solver.harness import assert_refused, different, digits_net, in_files

ITERATIONS = 210  # trying both values of one field takes 180 of them at most


def trained(folder, text, *arguments, ranks=2, **environ):
    """Runs `engine train` on ranks, two by default, whose sums are the same bits however they are divided; returns the
    finished process."""
    folder.mkdir()
    (folder / "net.prototxt").write_text(digits_net(4))
    (folder / "solver.prototxt").write_text(
        f'net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: {ITERATIONS} '
        f'display: 50 snapshot: 15 test_iter: 2 test_interval: 30 snapshot_prefix: "{folder}/net" {text}'
    )
    return resumed(folder / "solver.prototxt", *arguments, ranks=ranks, **environ)


def resumed(solver, *arguments, ranks=2, **environ):
    """Runs `engine train` on ranks; returns the finished process."""
    return run_ranks(
        ranks, ["-m", "engine", "train", "--solver", str(solver), *arguments], timeout=200, environ=environ
    )


@pytest.mark.mpi
def test_the_weights_are_those_of_a_run_that_does_not_tune(tmp_path):
    """It tunes through tests and snapshots, with clipping and momentum. The choice can be copied into a solver, and a
    run that goes on from a later snapshot takes it, too."""
    given = "algorithm: PLAIN drift_check: 20 bucket_mb: 0.01 chunk_mb: 0.01 priority: true"
    clip = f"clip_gradients: 5 comm_param {{ {given} %s }}"
    done = trained(tmp_path / "tuned", clip % "autotune: true")
    assert done.returncode == 0, done.stderr[-3000:]
    tried = set(re.findall(r"autotune: [\d.]+ ms a step, [\d.]+ exposed: (comm_param \{.*\})", done.stderr))
    chosen = re.findall(r"autotune: the fastest of (\d+) settings; to keep it: (comm_param \{.*\})", done.stderr)
    assert len(chosen) == 1 and int(chosen[0][0]) == len(tried) and chosen[0][1] in tried
    assert len(tried) == 2 and parse_solver(f'net: "x" {chosen[0][1]}', "x")
    assert "the run has ended before" not in done.stderr
    (tmp_path / "again").mkdir()
    state, there = tmp_path / "tuned/net_iter_180.solverstate", f"snapshot_prefix={tmp_path}/again/net"
    again = resumed(tmp_path / "tuned/solver.prototxt", "--snapshot", str(state), "--set", there)
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"autotune: as in the snapshot: {chosen[0][1]}" in again.stderr and "ms a step" not in again.stderr
    assert different(in_files(tmp_path / "tuned", ITERATIONS), in_files(tmp_path / "again", ITERATIONS)) == []
    kept = [read_solverstate(folder / f"net_iter_{ITERATIONS}.solverstate").tuned for folder in tmp_path.iterdir()]
    assert len(kept) == 2 and kept[0] and kept[0] == kept[1]
    # At iteration 15 the search is not over: it takes 20 at least.
    assert read_solverstate(tmp_path / "tuned/net_iter_15.solverstate").tuned is None
    plain = trained(tmp_path / "plain", clip % "servers: 1")
    assert plain.returncode == 0, plain.stderr[-3000:]
    for iteration in (30, ITERATIONS):
        assert different(in_files(tmp_path / "tuned", iteration), in_files(tmp_path / "plain", iteration)) == []


@pytest.mark.mpi
def test_a_run_that_is_shorter_than_the_search_says_so(tmp_path):
    done = trained(tmp_path / "x", "comm_param { autotune: true }", "--set", "max_iter=20")
    assert done.returncode == 0, done.stderr[-3000:]
    best = re.findall(r"autotune: the run has ended before the search; best so far: (comm_param \{.*\})", done.stderr)
    assert len(best) == 1 and parse_solver(f'net: "x" {best[0]}', "x")


@pytest.mark.mpi
@pytest.mark.slow
def test_on_several_hosts_the_sum_by_hosts_is_tried_too(tmp_path):
    given = "autotune: true servers: 1 bucket_mb: 1 chunk_mb: 1 priority: false"
    words = ("--set", "max_iter=70", "--set", "test_initialization=false")
    done = trained(tmp_path / "x", f"comm_param {{ {given} }}", *words, ranks=4, MPIR_CVAR_NUM_CLIQUES="2")
    assert done.returncode == 0, done.stderr[-3000:]
    if "MPICH" not in (mpi_library() or ""):
        pytest.skip("this MPI cannot make several hosts of one")
    tried = re.findall(r"exposed: (comm_param \{.* algorithm: (\w+) \})", done.stderr)
    assert [algorithm for _, algorithm in tried] == ["PLAIN", "HIERARCHICAL"]
    chosen = re.findall(r"the fastest of 2 settings; to keep it: (comm_param \{.*\})", done.stderr)
    assert len(chosen) == 1 and chosen[0] in dict(tried)


class Uneven(World):
    """Stands for one of three ranks on two hosts, which run one after the other. told: what rank 0 has broadcast so
    far."""

    size = 3

    def __init__(self, rank: int, told: list):
        self.rank, self.local_size, self._told, self._heard = rank, 2 if rank < 2 else 1, told, iter(told)

    def broadcast_object(self, value, root=0):
        if self.rank == root:
            self._told.append(value)
        return value if self.rank == root else next(self._heard)


class Reducing:
    """Has what a tuner needs of an optimizer: settings, and communicate() to change them."""

    def __init__(self, cores: tuple[int, ...] | None):
        self.param = proto.SolverParameter()
        self.strategy = SimpleNamespace(settings=CommSettings(2, cores))

    def communicate(self, settings: CommSettings) -> None:
        self.strategy.settings = settings


@pytest.mark.parametrize(("chosen", "error"), [(True, None), (False, "x.solverstate: what autotune has chosen cannot")])
def test_ranks_of_uneven_hosts_go_on_with_the_same_settings(chosen, error):
    """The algorithm can be chosen only on the host with two ranks. The servers of each rank keep its own cores."""
    told, found = [], []
    wanted = CommSettings(2, bucket_bytes=1 << 20, chunk_bytes=1 << 19, reduction=Reduction(hierarchical=True))
    for rank in range(3):
        world, optimizer = Uneven(rank, told), Reducing((2 * rank, 2 * rank + 1))
        tuner = Tuner(optimizer, None, world)
        with pytest.raises(WeightsError, match=error) if error else nullcontext():
            tuner.restore(to_json(wanted) if chosen else "[]", 3, "x.solverstate")
        found.append(optimizer.strategy.settings)
    if chosen:
        assert found == [replace(wanted, cores=(2 * rank, 2 * rank + 1)) for rank in range(3)]


@pytest.mark.mpi
def test_what_watches_single_buckets_is_refused(tmp_path):
    done = trained(tmp_path / "x", "comm_param { autotune: true }", "--layer_times")
    assert done.returncode == 1 and done.stderr.count("does not go together with --timeline and --layer_times") == 1
    assert "solver.prototxt:1:" in done.stderr and not list((tmp_path / "x").glob("net_*"))


@pytest.mark.parametrize(
    "text, words",
    [
        ("comm_param { autotune: true mode: ASYNC }", "comm_param.autotune does not go together with mode: ASYNC"),
        ("comm_param { autotune: true mode: LOCAL }", "comm_param.autotune does not go together with mode: LOCAL"),
        ("comm_param { autotune: true shard_updates: true }", "does not go together with shard_updates: take it out"),
    ],
)
def test_what_does_not_go_together(text, words):
    assert_refused(text, words)
