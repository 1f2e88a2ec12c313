"""BatchNorm over the batches of all ranks: the same weights as one rank that has the global batch."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, all_fine, distance

NET = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  transform_param {{ scale: 0.0625 }}
  data_param {{ source: "{DIGITS}/digits_train_lmdb" backend: LMDB batch_size: BATCH }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 12 kernel_size: 3 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param {{ moving_average_fraction: 0.9 }} }}
layer {{ name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param {{ bias_term: true }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "conv" top: "ip1"
  inner_product_param {{ num_output: 16 bias_term: false weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "bn1" type: "BatchNorm" bottom: "ip1" top: "bn1" }}
layer {{ name: "tanh" type: "TanH" bottom: "bn1" top: "bn1" }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "bn1" top: "ip2"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }}
"""

PROGRAM = """
import numpy as np
from engine.comm.world import world
from tests.solver.harness import *
from tests.solver.test_sync_batch_norm import NET
world = world()
net = NET.replace("BATCH", str(16 // world.size)) + "bn_sync: {sync}"
solver = solve("max_iter: 25 iter_size: 2 momentum: 0.9 random_seed: 3 base_lr: 0.02", net, world=world)
world.allreduce_mean(solver.net.statistics())
if world.rank == 0:
    np.savez({path!r}, **learned(solver))
world.close()
"""


def trained(ranks: int, sync: bool = True) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "learned.npz")
        done = run_ranks(ranks, PROGRAM.format(path=path, sync=str(sync).lower()), timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: values for name, values in np.load(path).items() if values.any()}  # statistics have no history


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_weights_and_statistics_as_one_rank(ranks):
    one = trained(1)
    assert distance(one, trained(1, sync=False)) < 1e-4, "alone, sync changes nothing"
    assert distance(one, trained(ranks)) < 1e-4
    assert distance(one, trained(ranks, sync=False)) > 1e-2, "the ranks' own statistics are something else"


WAITS = """
import threading, time
from engine.comm.world import world
from tests.solver.harness import *
from tests.solver.test_sync_batch_norm import NET
world = world()
solver = make_solver("", NET.replace("BATCH", "8") + "bn_sync: true", world=world)
solver.feeder.start(0)
found = []
if world.rank == 1:
    time.sleep(4)
else:
    threading.Timer(2, lambda: found.append((world.board.waits_for_others(), world.board.text()))).start()
solver.step()
assert world.rank or found == [(True, "iteration 0, forward of layer bn, waits for the other ranks")], found
solver.close()
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_the_watchdog_knows_who_waits():
    all_fine(2, WAITS)
