"""Sharded updates (`comm_param { shard_updates }`) train as whole ones do, and write the same snapshots."""

import os
import re
import signal

import numpy as np
import pytest

from engine.comm.buckets import make_buckets
from engine.comm.shares import Shares, bounds_of_share, bounds_of_shares
from engine.errors import ConfigError
from engine.weights import read_caffemodel
from tests.mpi import run_ranks
from tests.solver.harness import all_fine, different, digits_net, distance, in_files, make_solver, solve
from tests.solver.test_model_parallel import divided
from tests.solver.test_restart import start, train
from tests.watchdog.test_dead_rank import pid_of_rank

COMMON = "max_iter: 6 iter_size: 2 momentum: 0.9 weight_decay: 0.001 base_lr: 0.02 random_seed: 3 "
OPTIONS = {
    "sgd": "clip_gradients: 0.5 warmup_iter: 3 warmup_start_lr: 0.002 momentum_correction: true",
    "nesterov": 'type: "Nesterov" regularization_type: "L1" weight_decay: 0.0001',
    "adagrad": 'type: "AdaGrad" momentum: 0',
    "rmsprop": 'type: "RMSProp" rms_decay: 0.9 momentum: 0 delta: 1e-4 base_lr: 0.002',
    "adadelta": 'type: "AdaDelta" delta: 1e-4 base_lr: 1',
    "adam": 'type: "Adam" base_lr: 0.001 delta: 1e-4 ema: 0.9',
    "adamw": 'type: "Adam" base_lr: 0.001 delta: 1e-4 weight_decay: 0.1 decoupled_weight_decay: true',
    "lars": "local_lr_auto: true local_gw_ratio: 0.01 base_lr: 0.2 clip_gradients: 0.5",
    "plateau": 'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 plateau_winsize: 2 average_loss: 2',
}
BF16 = "compression: BF16"
# Settings of what travels, and by how much weights may differ from those of whole updates, relative to the largest.
# Sums of float32 have the same bits, but norms are added up in another order; a weight that travels as bfloat16 loses
# up to 2^-9 of its value.
WAYS = {"": 1e-6, BF16: 0.01, f"{BF16} error_feedback: true": 0.01}

PROGRAM = """
import hashlib
from engine.comm.world import world
from tests.solver.harness import *
world = world()

def train(text, comm):
    text = with_defaults(text, COMMON) + " comm_param {{ bucket_mb: 0.006 chunk_mb: 0.003 " + comm + " }}"
    solver = solve(text, digits_net(8 // world.size), world=world)
    digests = world.gather(hashlib.sha256(solver.optimizer.weights.tobytes()).hexdigest())
    assert digests is None or len(set(digests)) == 1, "the ranks differ"
    arrays = solver.optimizer.history.arrays
    counts = world.gather(sum(array.size for array in arrays))
    if counts and solver.optimizer.sharding:
        whole = len(arrays) * solver.net.arena_size
        assert whole * 0.95 < sum(counts) <= whole and max(counts) < 1.6 * whole / world.size, (counts, whole)
    return solver.optimizer.weights.copy(), learned(solver)

for way, tolerance in WAYS.items():
    names = OPTIONS if world.size == 2 else ["sgd", "adam", "lars"]
    for name in ["sgd", "adam"] if way else names:
        before, whole = train(OPTIONS[name], way)
        after, sharded = train(OPTIONS[name], way + " shard_updates: true")
        apart = np.abs(after - before).max() / np.abs(before).max()
        assert apart <= tolerance, (name, way, apart)
        if world.rank == 0 and not way:
            exact = name not in ("sgd", "lars") and {hosts} == 1
            assert not different(whole, sharded) if exact else distance(whole, sharded) <= tolerance, name
    _, again = train(OPTIONS[name], way + " shard_updates: true {again}")
    assert world.rank or different(sharded, again) == [], (name, way)
world.close()
print("fine", flush=True)
"""


def run(ranks: int, program: str, **environ: str) -> None:
    """Runs a program on ranks, each of which has to print "fine"."""
    names = {"COMMON": COMMON, "OPTIONS": OPTIONS, "WAYS": WAYS, "ADAM": ADAM}
    done = run_ranks(ranks, program, timeout=240, environ=environ, names=names)
    assert done.returncode == 0 and done.stdout.count("fine") == ranks, done.stdout + done.stderr[-2000:]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "hosts", "again"),
    [
        (2, 1, "servers: 1 priority: true"),
        pytest.param(4, 1, "servers: 0", marks=pytest.mark.slow),
        (4, 2, "servers: 3"),
    ],
)
def test_sharded_updates_train_as_whole_ones(ranks, hosts, again):
    """This holds for every rule and every option that needs norms or moments. Another run with another number of
    servers has the same bits. On two hosts of two ranks, MPI's own collectives sum up."""
    run(ranks, PROGRAM.format(again=again, hosts=hosts), MPIR_CVAR_NUM_CLIQUES=str(hosts))


ADAM = f"{OPTIONS['adam']} momentum: 0.9 random_seed: 3 max_iter: 6 snapshot: 3"
RESUME = """
import sys
from engine.comm.world import world
from tests.solver.harness import *
for comm, folder, restore in {runs!r}:
    text = ADAM + " comm_param {{ bucket_mb: 0.006 chunk_mb: 0.003 " + comm + " }}"
    solve(text, digits_net(12 // world().size), folder, world=world(), restore=restore)
world().close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_snapshots_hold_the_whole(tmp_path):
    """A snapshot of 4 ranks is resumed with and without shards on 1 to 4 ranks. On 4 it comes to the same bits as the
    run that was not interrupted."""
    for name in ("all", "again", "bf16", "bf16_again", "one", "two", "three"):
        (tmp_path / name).mkdir()
    sharded, state = "shard_updates: true", str(tmp_path / "all/net_iter_3.solverstate")
    runs = [(sharded, "all", ""), (sharded, "again", state), (f"{sharded} {BF16}", "bf16", "")]
    runs.append((f"{sharded} {BF16}", "bf16_again", str(tmp_path / "bf16/net_iter_3.solverstate")))
    run(4, RESUME.format(runs=[(comm, str(tmp_path / name), restore) for comm, name, restore in runs]))
    for name in ("", "bf16_"):
        whole, again = tmp_path / (name.strip("_") or "all"), tmp_path / f"{name}again"
        assert different(in_files(whole, 6), in_files(again, 6)) == []
        assert (whole / "net_iter_6_ema.caffemodel").read_bytes() == (again / "net_iter_6_ema.caffemodel").read_bytes()
    run(2, RESUME.format(runs=[(sharded, str(tmp_path / "two"), state)]))
    run(3, RESUME.format(runs=[("", str(tmp_path / "three"), state)]))
    solve(ADAM, digits_net(12), tmp_path / "one", restore=state)
    for name in ("one", "two", "three"):
        assert distance(in_files(tmp_path / "all", 6), in_files(tmp_path / name, 6)) <= 1e-4, name
    # Snapshots hold float32 weights, not the bfloat16 that travels.
    weights = in_files(tmp_path / "bf16", 6)["ip1[0]"]
    assert np.count_nonzero(weights.view(np.uint32) & 0xFFFF) > 0.9 * weights.size


PICKLED = """
import pickle
from engine.comm.world import world
from engine.watchdog import board
from tests.solver.harness import *
world, pickled = world(), []
for name in ("gather", "broadcast_object"):
    def watched(value, *root, method=getattr(world, name)):
        pickled.append(len(pickle.dumps(value)))
        return method(value, *root)
    setattr(world, name, watched)
in_place, gather_array = [], world.gather_array
world.gather_array = lambda values: in_place.append(world.board.numbers[board.PLACE]) or gather_array(values)
tested = "test_iter: 1 test_interval: 2 snapshot_best: 'accuracy'"
text, net, folder = "max_iter: 2 momentum: 0.9 snapshot: 2 " + tested + {comm!r}, digits_net(8) + {net!r}, {folder!r}
solve(text, net, folder, world=world)
assert board.SNAPSHOT in in_place and (len(set(in_place)) == 1 or {net!r})  # where tests need the whole, too
solve(text, net, folder, world=world, restore=folder + "/net_iter_2.solverstate")
assert max(pickled) < 10_000, max(pickled)  # of weights, 42 KB at a time
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    "comm, net", [(f" comm_param {{ shard_updates: true {BF16} }}", ""), ("", divided("conv", "ip2"))]
)
def test_weights_and_history_travel_in_messages_of_bounded_size(tmp_path, comm, net):
    """They are not sent as pickled objects, each of which would be one message. The watchdog knows that sending may
    take long."""
    run(2, PICKLED.format(folder=str(tmp_path), comm=comm, net=net))


@pytest.mark.mpi
def test_the_average_is_of_float32_weights(tmp_path):
    """With an ema of almost 0, the average is the last update's weights: the float32 ones, not the bfloat16 that has
    travelled."""
    program = RESUME.replace("text = ADAM", 'text = ADAM.replace("ema: 0.9", "ema: 1e-9")')
    run(3, program.format(runs=[(f"shard_updates: true {BF16}", str(tmp_path), "")]))
    average = read_caffemodel(tmp_path / "net_iter_6_ema.caffemodel")
    for layer, blobs in read_caffemodel(tmp_path / "net_iter_6.caffemodel").items():
        for blob, averaged in zip(blobs, average[layer], strict=True):
            assert np.abs(blob - averaged).max() <= 1e-6 * np.abs(blob).max()


SOLVER = """
net: "{folder}/train.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 type: "Adam" random_seed: 7 display: 1
max_iter: 100000 snapshot: 30 snapshot_prefix: "{folder}/net" comm_param {{ shard_updates: true compression: BF16 }}
"""


@pytest.mark.mpi
def test_a_rank_that_is_killed(tmp_path):
    """The run goes on from its last snapshot, to the same bits as one that was not disturbed."""
    for name in ("killed", "alone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.prototxt").write_text(digits_net(8))
        (tmp_path / name / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path / name))
    process = start(tmp_path / "killed", 2)
    assert process.stderr and any("Iteration 32" in line for line in process.stderr)
    pid = pid_of_rank(1)
    assert pid
    os.kill(pid, signal.SIGKILL)
    rest = process.communicate(timeout=60)[1]
    last = re.search(r"the last snapshot is \S*net_iter_(\d+)\.solverstate", rest)
    assert process.returncode != 0 and last and int(last[1]) >= 30, rest
    end = int(last[1]) + 60
    for name in ("killed", "alone"):
        status, errors = train(tmp_path / name, 2, "--resume", "auto", "--set", f"max_iter={end}")
        assert status == 0, errors
    assert different(in_files(tmp_path / "killed", end), in_files(tmp_path / "alone", end)) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_every_float_belongs_to_one_rank(ranks):
    buckets = make_buckets([("a", 0, 5000), ("b", 5008, 37), ("c", 5056, 70000)], bucket_bytes=40_000)
    owners, counts = np.zeros(buckets[-1].end, int), []
    for rank in range(ranks):
        shares = Shares(buckets, 16_000, rank, ranks)
        mine = np.full(shares.count, np.nan)
        shares.take(np.arange(owners.size, dtype=float), mine)
        owners[mine.astype(int)] += 1
        assert not np.isnan(mine).any() and (np.diff(mine) > 0).all()
        counts.append(shares.count)
    inside = np.concatenate([np.arange(bucket.begin, bucket.end) for bucket in buckets])
    assert (owners[inside] == 1).all() and owners.sum() == inside.size == sum(counts)
    assert [bounds_of_share(5000, ranks, rank) for rank in range(ranks)] == bounds_of_shares(5000, ranks)
    assert bounds_of_shares(20, 3) == [(0, 20), (20, 20), (20, 20)]


BAD = {
    "comm_param { shard_updates: true algorithm: HIERARCHICAL }": "shard_updates does not go together with algorithm: "
    "HIERARCHICAL: take one out",
    "comm_param { shard_updates: 2 }": "'shard_updates' expects true or false, got 2",
    "comm_param { shard_update: true }": "shard_updates",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input(text):
    with pytest.raises(ConfigError, match=BAD[text]):
        make_solver(text, digits_net())


def test_one_rank_has_the_whole():
    solver = make_solver("comm_param { shard_updates: true }", digits_net())
    assert solver.optimizer.sharding is None
    solver.close()


DIVIDED = """
from engine.comm.world import world
from engine.errors import ConfigError
from tests.solver.harness import *
net = digits_net(8).replace('name: "ip1"', 'name: "ip1" multinode { model_parts: 2 }')
try:
    make_solver("comm_param { shard_updates: true }", net, world=world())
except ConfigError as error:
    print(error)
world().close()
"""


@pytest.mark.mpi
def test_layers_in_parts_are_refused():
    done = run_ranks(2, DIVIDED)
    expected = "comm_param { shard_updates } does not go together with model_parallel: take one of them out"
    assert done.stdout.count(expected) == 2, done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("comm", ["shard_updates: true compression: BF16", "mode: ASYNC"])
def test_layers_that_rescale_their_weights_are_refused(comm):
    """Updates change the master weights, which the layers would not rescale."""
    program = f"""
from engine.comm.world import world
from engine.errors import ConfigError
from tests.solver.harness import *
net = digits_net(8).replace("num_output: 10", "num_output: 10 normalize: true bias_term: false")
try:
    make_solver("comm_param {{ {comm} }}", net, world=world())
except ConfigError as error:
    assert "layer 'ip2'" in str(error) and "brings its weights to length 1" in str(error), error
    print("fine", flush=True)
world().close()
"""
    all_fine(2, program)


UNTRAINED = """
from engine.comm.world import world
from tests.solver.harness import *
for comm in ("mode: ASYNC", "shard_updates: true compression: BF16"):
    solver = make_solver("comm_param {{ " + comm + " }}", digits_net(8), "{folder}", world())
    before = solver.net.weights_by_layer()["ip1"][0]
    solver.snapshot()
    assert world().rank or (in_files(Path("{folder}"), 0)["ip1[0]"] == before).all(), comm
    solver.close()
world().close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_a_snapshot_before_the_first_step(tmp_path):
    all_fine(2, UNTRAINED.format(folder=tmp_path))


SHARED = """
from engine.comm.world import world
from tests.solver.harness import *
ip1 = 'layer {{ name: "ip1" type: "InnerProduct" bottom: "conv" top: "ip1"'
net = digits_net(8).replace(ip1, ip1 + ' param {{ name: "w" }}')
twin = ip1.replace("ip1", "twin") + ' param {{ name: "w" }} inner_product_param {{ num_output: 32 }} }}'
silence = 'layer {{ name: "silence" type: "Silence" bottom: "twin" }}'
text = "max_iter: 2 comm_param {{ shard_updates: true compression: BF16 }}"
solve(text, net + twin + silence, "{folder}", world=world())
world().close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_shared_parameters_are_saved_in_float32(tmp_path):
    """A snapshot has them under the names of all their layers, and a reader takes those of the last one."""
    all_fine(2, SHARED.format(folder=tmp_path))
    weights = in_files(tmp_path, 2)
    assert np.array_equal(weights["ip1[0]"], weights["twin[0]"])
    assert np.count_nonzero(weights["ip1[0]"].view(np.uint32) & 0xFFFF)
