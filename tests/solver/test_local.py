"""Local SGD (`comm_param { mode: LOCAL }`): what ranks learn by themselves, and when they take their average."""

import numpy as np
import pytest

from engine.comm.settings import LocalSteps
from engine.errors import EngineError
from tests.solver.harness import all_fine, assert_refused, different, digits_net, in_files, make_solver, solve

COMMON = "max_iter: 7 momentum: 0.9 weight_decay: 0.001 base_lr: 0.02 random_seed: 3 "


def test_when_ranks_average():
    steps = LocalSteps(3, 2)
    assert [steps.is_local(i) for i in range(4)] == [False, False, True, True]
    assert [i for i in range(12) if steps.averages(i)] == [4, 7, 10]
    assert all(LocalSteps(1).averages(i) for i in range(3))


REFERENCE = """
import os
from engine.comm.world import world
from tests.comm.gradients import *
w = world()

def expected():
    # Every rank's weights and history in float64: two synchronous steps, then the average of each three local ones.
    run = Run(World())
    count = run.weights.size
    weights, history = np.tile(run.weights.astype(np.float64), (w.size, 1)), np.zeros((w.size, count))
    rate, decay, used = run.constants()
    for step in range(STEPS):
        gradients = np.stack([np.where(used, run.gradient(step, rank, w.size), 0) for rank in range(w.size)])
        if step < 2:
            gradients[:] = gradients.mean(axis=0)
        norms = np.sqrt((gradients**2).sum(axis=1, keepdims=True))
        if {clip}:
            gradients *= np.minimum(1, {clip} / norms)
        history = np.where(used, 0.9 * history + 0.1 / (step + 1) * rate * (gradients + decay * weights), 0)
        weights = weights - history
        if step >= 2 and (step - 2) % 3 == 2:
            weights[:], history[:] = weights.mean(axis=0), history.mean(axis=0)
    return weights[w.rank], history[w.rank], weights.mean(axis=0)

digests, (weights, history, mean) = set(), expected()
for servers, order in ((0, ""), (2, "priority: true")):
    os.environ["MLSL_NUM_SERVERS"] = str(servers)
    run = Run(w, clip={clip}, comm="mode: LOCAL sync_every: 3 sync_start: 2 chunk_mb: 0.01 " + order)
    run.steps()
    assert np.abs(weights - mean).max() > 1e-4 and run.strategy.apart
    np.testing.assert_allclose(run.weights, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.history, history, rtol=1e-5, atol=1e-6)
    run.strategy.settle()
    np.testing.assert_allclose(run.weights, mean, rtol=1e-5, atol=1e-6)
    found = w.gather(run.digest()) or [0]
    assert len(set(found)) == 1 and not run.strategy.apart
    digests |= set(found)
    run.strategy.close()
assert len(digests) == 1, "the bits depend on the number of servers"
w.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "clip"), [(3, 0), (2, 3.0)])
def test_ranks_update_by_themselves_and_average(ranks, clip):
    """The weights and momentum of each rank are those of a reference in NumPy."""
    all_fine(ranks, REFERENCE.format(clip=clip))


EQUAL = """
import hashlib
from engine.comm.world import world
from tests.solver.harness import *
world = world()

def train(comm, text=""):
    text = with_defaults(text, COMMON) + " comm_param {{ bucket_mb: 0.006 chunk_mb: 0.003 " + comm + " }}"
    solver = solve(text, digits_net(8), world=world)
    assert solver.state.samples_seen == 7 * 8 * world.size
    arrays = [solver.optimizer.weights, *solver.optimizer.history.arrays]
    digests = world.gather([hashlib.sha256(array.tobytes()).hexdigest() for array in arrays])
    assert digests is None or all(each == digests[0] for each in digests), "the ranks differ at the end"
    return learned(solver)

# An average of weights and momentum after every iteration is that of the gradients, for what is linear in them.
whole = train("")
assert distance(whole, train("mode: LOCAL sync_every: 1")) < 1e-5
assert not different(whole, train("mode: LOCAL sync_start: 7"))
local = train("mode: LOCAL sync_every: 3")
assert 1e-4 < distance(whole, local) < 0.5
assert not different(local, train("mode: LOCAL sync_every: 3 servers: 1 priority: true"))
for options in ('type: "Adam" base_lr: 0.001 ema: 0.9', "local_lr_auto: true local_gw_ratio: 0.01 clip_gradients: 0.5"):
    found = train("mode: LOCAL sync_every: 2", options + " iter_size: 1")
    assert all(np.isfinite(values).all() for values in found.values())
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_beside_synchronous_training():
    """LOCAL that averages after each iteration, or begins to when the run ends, trains as SYNC does."""
    all_fine(2, EQUAL.format(), names={"COMMON": COMMON})


RESUME = """
from engine.comm.world import world
from tests.solver.harness import *
world = world()
for folder, restore, options in {runs!r}:
    text = with_defaults(options, COMMON + "max_iter: 9 snapshot: 4")
    text += " comm_param {{ mode: LOCAL sync_every: 3 bucket_mb: 0.006 drift_check: 2 }}"
    solver = solve(text, digits_net(12 // world.size), folder, restore=restore, world=world)
    assert solver.state.samples_seen == 9 * 12, solver.state.samples_seen
world.close()
print("fine", flush=True)
"""
EMA = 'type: "Adam" base_lr: 0.001 ema: 0.9'


@pytest.mark.mpi
def test_snapshots_hold_the_average(tmp_path):
    """The snapshot falls between two averages. From it, a run goes on to the same bits, and also on other numbers of
    ranks."""
    for name in ("whole", "again", "ema", "ema_again", "one", "three"):
        (tmp_path / name).mkdir()
    state = str(tmp_path / "whole/net_iter_4.solverstate")
    runs = [("whole", "", ""), ("again", state, ""), ("ema", "", EMA)]
    runs.append(("ema_again", str(tmp_path / "ema/net_iter_4.solverstate"), EMA))
    all_fine(
        2,
        RESUME.format(runs=[(str(tmp_path / name), restore, options) for name, restore, options in runs]),
        names={"COMMON": COMMON},
    )
    for name, again in (("whole", "again"), ("ema", "ema_again")):
        assert different(in_files(tmp_path / name, 9), in_files(tmp_path / again, 9)) == []
    first, second = (tmp_path / name / "net_iter_9_ema.caffemodel" for name in ("ema", "ema_again"))
    assert first.read_bytes() == second.read_bytes()
    all_fine(3, RESUME.format(runs=[(str(tmp_path / "three"), state, "")]), names={"COMMON": COMMON})
    solve(
        f"{COMMON} max_iter: 9 comm_param {{ mode: LOCAL }}".replace("max_iter: 7", ""),
        digits_net(12),
        tmp_path / "one",
        restore=state,
    )
    for name in ("one", "three"):
        values = in_files(tmp_path / name, 9)
        assert all(np.isfinite(value).all() for value in values.values())
        assert different(in_files(tmp_path / "whole", 9), values), "the test could not fail"


def test_one_rank_is_synchronous():
    """The weights have the same bits as in synchronous training."""
    one, other = (solve(f"{COMMON} {mode}", digits_net()) for mode in ("", "comm_param { mode: LOCAL sync_every: 2 }"))
    assert one.optimizer.weights.tobytes() == other.optimizer.weights.tobytes()


BAD = {
    "comm_param { mode: LOCAL sync_every: 0 }": "comm_param.sync_every: expected 1 or more, got 0",
    "comm_param { mode: LOCAL sync_start: -1 }": "comm_param.sync_start: expected 0 or more, got -1",
    "comm_param { sync_every: 4 }": "comm_param.sync_every is of mode: LOCAL, and the mode is SYNC",
    "comm_param { mode: LOCAL shard_updates: true }": "comm_param.shard_updates does not go together with mode: LOCAL",
    "comm_param { mode: LOCAL compression: BF16 }": "comm_param.compression: BF16 does not go together",
    "comm_param { mode: LOCALE }": "LOCAL",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input(text):
    assert_refused(text, BAD[text])


@pytest.mark.parametrize("mode", ["LOCAL", "ASYNC"])
def test_synchronised_batch_norm_is_refused(mode):
    net = digits_net().replace(
        'layer { name: "relu"', 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" } layer { name: "relu"'
    )
    with pytest.raises(EngineError, match=rf"mode: {mode} does not go together with synchronised BatchNorm \(bn_sync"):
        make_solver(f"comm_param {{ mode: {mode} }}", f"bn_sync: true {net}")
