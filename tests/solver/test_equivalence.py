"""Any number of ranks trains as one does: 1 x 16, 2 x 8 and 4 x 4 samples, 24 iterations of 2 micro-batches."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.mpi import run_ranks
from tests.solver.harness import different, distance

pytestmark = pytest.mark.mpi

COMMON = "max_iter: 24 iter_size: 2 momentum: 0.9 weight_decay: 0.001 base_lr: 0.02 random_seed: 3 "
BUCKETS = " comm_param { bucket_mb: 0.006 }"  # so small that there are several
WARM = "warmup_iter: 7 warmup_start_lr: 0.002 clip_gradients: 0.5 "
OPTIONS = {
    "sgd": WARM + 'lr_policy: "poly" power: 1 momentum_correction: true',
    "nesterov": WARM + 'lr_policy: "step" gamma: 0.5 stepsize: 10 type: "Nesterov"',
    "l1": 'regularization_type: "L1" weight_decay: 0.0001',
    "adam": 'type: "Adam" base_lr: 0.001 delta: 1e-4 clip_gradients: 0.5',
    "adamw": 'type: "Adam" base_lr: 0.001 delta: 1e-4 weight_decay: 0.1 decoupled_weight_decay: true',
    "lars": "local_lr_auto: true local_gw_ratio: 0.01 base_lr: 0.5 clip_gradients: 0.5",
    "larc": 'local_lr_auto: true local_gw_ratio: 0.01 larc_policy: "clip"',
    "plateau": 'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 3 plateau_winsize: 3 average_loss: 4',
}

NAMES = {"BUCKETS": BUCKETS, "COMMON": COMMON, "OPTIONS": OPTIONS}  # of programs that ranks run
PROGRAM = """
import hashlib
import numpy as np
from engine.comm.world import world
from tests.solver.harness import *
world = world()
for name, text in OPTIONS.items():
    solver = solve(with_defaults(text, COMMON) + BUCKETS, digits_net(16 // world.size), world=world)
    assert len(solver.optimizer.buckets) > 2
    learnt = solver.optimizer.weights.tobytes() + solver.optimizer.history.arrays[0].tobytes()
    digests = world.gather(hashlib.sha256(learnt).hexdigest())
    if world.rank == 0:
        assert len(set(digests)) == 1, f"{{name}}: the ranks differ"
        np.savez({folder!r} + f"/{{name}}.npz", rate=solver.state.last_rate, **learned(solver))
world.close()
"""


@functools.cache
def trained(ranks: int, servers: int = 2, attempt: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Returns what rank 0 has learned with each option. The ranks compare their bits in the program."""
    with tempfile.TemporaryDirectory() as folder:
        program = PROGRAM.format(folder=folder)
        done = run_ranks(ranks, program, timeout=120, environ={"MLSL_NUM_SERVERS": str(servers)}, names=NAMES)
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: dict(np.load(Path(folder) / f"{name}.npz")) for name in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_weights_on_any_number_of_ranks(ranks, option):
    one, many = trained(1)[option], trained(ranks)[option]
    assert distance(one, many) <= 1e-5


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("servers", "attempt"), [(2, 1), (0, 0)])
def test_the_same_bits_in_another_run_and_with_any_number_of_servers(servers, attempt, option):
    assert different(trained(2)[option], trained(2, servers, attempt)[option]) == []


MIXED = """
import hashlib, os
import numpy as np
from engine.host.launch import detect
if detect().rank == 1:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # an older processor
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
world = world()
set_up(world.rank)
solver = solve(with_defaults(OPTIONS["sgd"], COMMON), digits_net(8), world=world)
digests = world.gather(hashlib.sha256(solver.optimizer.weights.tobytes()).hexdigest())
if world.rank == 0:
    assert len(set(digests)) == 1, "the ranks differ"
    np.savez({file!r}, rate=solver.state.last_rate, **learned(solver))
world.close()
"""


def test_ranks_of_different_processors_agree_on_plain_layouts(tmp_path):
    file = tmp_path / "found.npz"
    done = run_ranks(2, MIXED.format(file=str(file)), timeout=120, names=NAMES)
    assert done.returncode == 0, done.stdout + done.stderr
    if "Ranks 0 and 1 have different processors or oneDNN versions" not in done.stderr:
        pytest.skip("this processor has no more than AVX2")
    assert distance(trained(1)["sgd"], dict(np.load(file))) <= 1e-4
