"""BatchNorm over the batches of all ranks (bn_sync) learns the same weights as one rank with the global batch."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, all_fine, distance
from tests.solver.test_model_parallel import divided

NET = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  transform_param {{ scale: 0.0625 }}
  data_param {{ source: "{DIGITS}/digits_train_lmdb" backend: LMDB batch_size: BATCH }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 12 kernel_size: 3 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param {{ moving_average_fraction: 0.9 }} }}
layer {{ name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param {{ bias_term: true }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "conv2" type: "Convolution" bottom: "conv" top: "conv2"
  convolution_param {{ num_output: 12 kernel_size: 3 pad: 1 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn2" type: "BatchNorm" bottom: "conv2" top: "conv2" }}
layer {{ name: "sum" type: "Eltwise" bottom: "conv2" bottom: "conv" top: "sum" }}
layer {{ name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "sum" top: "ip1"
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
world = world()
for sync in ("true", "false"):
    net = NET.replace("BATCH", str(16 // world.size)) + "bn_sync: " + sync
    solver = solve("max_iter: 25 iter_size: 2 momentum: 0.9 random_seed: 3 base_lr: 0.02", net, world=world)
    assert not {{"Eltwise", "ReLU", "Scale", "Split"}} & {{layer.type for layer in solver.net.graph.layers}}
    world.allreduce_mean(solver.net.statistics())
    if world.rank == 0:
        np.savez(f"{folder}/{{sync}}.npz", **learned(solver))
world.close()
"""


@functools.cache
def trained(ranks: int) -> list[dict[str, np.ndarray]]:
    """Returns what is learned with bn_sync and what without it."""
    with tempfile.TemporaryDirectory() as folder:
        done = run_ranks(ranks, PROGRAM.format(folder=folder), timeout=120, names={"NET": NET})
        assert done.returncode == 0, done.stdout + done.stderr
        files = [np.load(Path(folder) / f"{sync}.npz") for sync in ("true", "false")]
        # The histories of statistics are all zeros, and are left out.
        return [{name: values for name, values in file.items() if values.any()} for file in files]


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_weights_and_statistics_as_one_rank(ranks):
    one, alone = trained(1)
    together, apart = trained(ranks)
    assert distance(one, alone) < 1e-4, "alone, sync changes nothing"
    assert distance(one, together) < 1e-4
    assert distance(one, apart) > 1e-2, "the ranks' own statistics are something else"


WAITS = """
import os, threading, time
from engine.comm.world import world
from tests.solver.harness import *
world = world()
solver = make_solver("", NET.replace("BATCH", "8") + "bn_sync: true", world=world)
solver.feeder.start(0)
found, end = [], time.monotonic() + 60

def look():
    while not world.board.waits_for_others() and time.monotonic() < end:
        time.sleep(0.01)
    found.append(world.board.text())
    open({seen!r}, "w").close()

if world.rank == 0:
    threading.Thread(target=look).start()
while world.rank == 1 and not os.path.exists({seen!r}) and time.monotonic() < end:
    time.sleep(0.01)
solver.step()
assert world.rank or found == ["iteration 0, forward of layer bn, waits for the other ranks"], found
solver.close()
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_the_watchdog_knows_who_waits(tmp_path):
    all_fine(2, WAITS.format(seen=str(tmp_path / "seen")), names={"NET": NET})


OTHER_SIZES = """
from engine.comm.world import world
from engine.errors import CommError
from tests.solver.harness import *
net = '''
layer {{ name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param {{ source: "{folder}/list_%#.txt" root_folder: "{folder}/" batch_size: 2 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {{ pool: AVE global_pooling: true }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
'''
world = world()
make_solver("", net, world=world).close()  # each rank by itself may have any size
try:
    make_solver("", net + {together!r}, world=world)
except CommError as error:
    assert str(error).startswith({message!r}), error
    print("fine", flush=True)
world.close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("together", "shapes"),
    [
        ("bn_sync: true", "\"2 x 4 x 4 x 4 ('bn')\" and \"2 x 4 x 6 x 6 ('bn')\""),
        (divided("conv", "conv"), "\"2 x 3 x 6 x 6 ('conv')\" and \"2 x 3 x 8 x 8 ('conv')\""),
    ],
    ids=["bn_sync", "parts"],
)
def test_ranks_with_pictures_of_other_sizes_are_refused(together, shapes, tmp_path):
    for rank, size in enumerate((6, 8)):
        Image.new("RGB", (size, size)).save(tmp_path / f"{size}.png")
        (tmp_path / f"list_{rank}.txt").write_text(f"{size}.png 0\n" * 4)
    message = "ranks 0 and 1 differ in shapes of layers that they compute together (bn_sync, model_parts): " + shapes
    all_fine(2, OTHER_SIZES.format(folder=tmp_path, together=together, message=message))
