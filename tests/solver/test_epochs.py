"""Training in epochs, with weight decays and batches that change: as in iterations, on any number of ranks, resumed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.comm.world import World
from engine.errors import ConfigError, WeightsError
from engine.examine.check import check_file
from engine.inference.evaluator import Evaluator
from engine.report.observer import Observer
from engine.solver.calendar import Calendar
from tests.mpi import run_ranks
from tests.solver.harness import different, digits_net, distance, in_files, learned, make_solver, solve

SAME = 'base_lr: 0.05 lr_policy: "poly" power: 1 momentum: 0.9 weight_decay: 0.001 random_seed: 3 '
IN_EPOCHS = SAME + "max_epoch: 0.5 warmup_epoch: 0.1 warmup_start_lr: 0.01 snapshot_epoch: 0.25 display_epoch: 0.1 "
# An epoch has 1437 samples, a batch 16.
IN_ITERATIONS = SAME + "max_iter: 44 warmup_iter: 8 warmup_start_lr: 0.01 snapshot: 22 "


def test_epochs_train_as_iterations_do(tmp_path):
    epochs, iterations = (tmp_path / name for name in ("epochs", "iterations"))
    for folder, text in ((epochs, IN_EPOCHS), (iterations, IN_ITERATIONS)):
        folder.mkdir()
        solve(text, digits_net(), folder)
    assert {path.name for path in epochs.glob("*_iter_*")} == {path.name for path in iterations.glob("*_iter_*")}
    for iteration in (22, 44):
        assert different(in_files(epochs, iteration), in_files(iterations, iteration)) == []


RANKS = """
from engine.comm.world import world
from tests.solver.harness import *
world = world()
solve(CHANGING, digits_net(16 // world.size), {folder!r}, world=world)
world.close()
"""
# The rate, the decay and the batch change; the batch grows from 16 samples to 32.
CHANGING = """
base_lr: 0.02 lr_policy: "cosine" max_epoch: 0.3 warmup_epoch: 0.05 policy_after_warmup: true momentum: 0.9
lr_scaling { base_batch: 8 } momentum_correction: true random_seed: 3 snapshot_epoch: 0.2 clip_gradients: 0.5
weight_decay: 0.001 weight_decay_schedule { policy: "multistep" gamma: 3 stepvalue_epoch: 0.1 stepvalue_epoch: 0.25 }
batch_growth { factor: 2 stepvalue_epoch: 0.15 }
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory) -> Path:
    """Trains CHANGING to its end; returns the folder with its snapshots, of iteration 15 and of the end."""
    folder = tmp_path_factory.mktemp("changing")
    solver = solve(CHANGING, digits_net(), folder)
    assert solver.calendar == Calendar(16, 1437, (13,), 2)
    assert solver.state.samples_seen == 13 * 16 + (solver.param.max_iter - 13) * 32
    assert sorted(int(path.stem.split("_")[-1]) for path in folder.glob("*.solverstate")) == [15, solver.iteration]
    return folder


def last(folder: Path) -> int:
    """Returns the iteration of the last snapshot."""
    return max(int(path.stem.split("_")[-1]) for path in folder.glob("*.solverstate"))


def test_what_changes_goes_on_bit_exactly(changing, tmp_path):
    """The snapshot lies after the growth of the batch and between two steps of the decay."""
    solve(CHANGING, digits_net(), tmp_path, restore=changing / "net_iter_15.solverstate")
    assert different(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) == []


@pytest.mark.mpi
def test_two_ranks_do_what_one_does(changing, tmp_path):
    done = run_ranks(2, RANKS.format(folder=str(tmp_path)), names={"CHANGING": CHANGING})
    assert done.returncode == 0, done.stderr
    assert last(tmp_path) == last(changing)
    assert distance(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) < 1e-5


RESUMED = """
from engine.comm.world import world
from engine.config import parse_solver
from engine.solver.stages import resume_stages
from engine.solver.solver import Solver
from tests.solver.harness import *
world = world()
text = f'{{CHANGING}} snapshot_prefix: "{folder}/net" net_param {{{{ {{digits_net()}} }}}}'
config = parse_solver(text, "{folder}/net.prototxt")
path = resume_stages([config], world, []).snapshot
assert path.endswith("net_iter_15.solverstate")
solver = Solver(config, world)
solver.restore(path)
assert solver.solve()
assert solver.calendar.batch == 16
solver.close()
world.close()
"""


@pytest.mark.mpi
def test_what_changes_goes_on_on_other_ranks(changing, tmp_path):
    """--resume auto keeps the batch that the run began with, which then grows as before."""
    for kind in ("caffemodel", "solverstate"):
        shutil.copy(changing / f"net_iter_15.{kind}", tmp_path)
    done = run_ranks(2, RESUMED.format(folder=tmp_path), names={"CHANGING": CHANGING})
    assert done.returncode == 0, done.stderr
    assert distance(in_files(changing, last(changing)), in_files(tmp_path, last(changing))) < 1e-5


def test_the_decay_changes_at_its_step(tmp_path):
    """The weights are those of a run that goes on from a snapshot with another weight_decay."""
    plain = "momentum: 0.9 random_seed: 3 max_iter: 12 "
    whole = solve(
        plain + 'weight_decay: 0.25 weight_decay_schedule { policy: "multistep" gamma: 2 stepvalue: 6 }', digits_net()
    )
    solve(plain + "weight_decay: 0.25 snapshot: 6", digits_net(), tmp_path)
    rest = solve(plain + "weight_decay: 0.5", digits_net(), restore=tmp_path / "net_iter_6.solverstate")
    assert different(learned(whole), learned(rest)) == []


def test_the_batch_grows_at_its_step(tmp_path):
    """The weights are those of a run that goes on from a snapshot with another iter_size."""
    plain = "momentum: 0.9 random_seed: 3 max_iter: 12 "
    whole = solve(plain + "batch_growth { factor: 3 stepvalue: 6 }", digits_net(8))
    solve(plain + "snapshot: 6", digits_net(8), tmp_path)
    rest = solve(plain + "iter_size: 3", digits_net(8), restore=tmp_path / "net_iter_6.solverstate")
    assert whole.state.samples_seen == rest.state.samples_seen == 6 * 8 + 6 * 24
    assert different(learned(whole), learned(rest)) == []


def test_another_batch_is_refused_where_epochs_count(changing):
    solver = make_solver(CHANGING, digits_net(8))
    words = "trained in global batches of 16, and this run's are of 8: max_epoch .* --resume auto holds the batch"
    with pytest.raises(WeightsError, match=words):
        solver.restore(str(changing / "net_iter_15.solverstate"))
    solver.close()


DUMMY = """
layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 4 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "l" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "l" loss_weight: 1 }
"""


def test_data_without_a_size():
    with pytest.raises(ConfigError, match=r"net\.prototxt:1:1: max_epoch needs the size of the data set.*epoch_size"):
        make_solver("max_epoch: 2", DUMMY)
    solver = make_solver("max_epoch: 2 epoch_size: 10", DUMMY)
    assert solver.param.max_iter == 5 and solver.given.max_epoch == 2  # in batches of 4
    assert solver.calendar.epochs(5) == 2 and solver.calendar.is_due(5, 0, 2) and not solver.calendar.is_due(4, 0, 2)
    solver.close()
    with pytest.raises(ConfigError, match="lr_scaling needs the batch_size of a data layer"):
        make_solver("lr_scaling { }", DUMMY)


def test_the_batch_of_a_net_without_a_data_layer(tmp_path, caplog):
    """The solver counts a batch of such a net as one sample, but epochs, messages and `check` count its rows."""
    caplog.set_level("INFO", "engine")
    text = "max_epoch: 3 epoch_size: 16 iter_size: 2 snapshot_epoch: 1"
    solve(text, DUMMY, tmp_path)
    assert "Global batch 8 = 1 rank x 4 x iter_size 2, 2.0 iterations per epoch of 16 samples" in caplog.text
    assert {path.name for path in tmp_path.glob("*.solverstate")} == {f"net_iter_{k}.solverstate" for k in (2, 4, 6)}
    solve(text.replace("3", "4"), DUMMY, tmp_path, restore=tmp_path / "net_iter_4.solverstate")
    assert "Iteration 4 begins with sample 32 (epoch 2)" in caplog.text and "8 iterations (4 epochs)" in caplog.text
    with pytest.raises(WeightsError, match="trained in global batches of 8, and this run's are of 4: max_epoch"):
        solve("max_epoch: 3 epoch_size: 16", DUMMY, restore=tmp_path / "net_iter_4.solverstate")
    (tmp_path / "solver.prototxt").write_text(f'base_lr: 1 lr_policy: "fixed" {text} net_param {{ {DUMMY} }}')
    report = check_file(str(tmp_path / "solver.prototxt"), ranks=2)
    assert report.batch == "16 = 2 ranks x 4 x iter_size 2" and report.outline.param.max_iter == 3


OWN_NET = """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "%(folder)s/list_%%#.txt" root_folder: "%(folder)s/" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SHARED_FIRST = """
layer { name: "shared" type: "ImageData" top: "shared" top: "labels"
  image_data_param { source: "%(folder)s/list_0.txt" root_folder: "%(folder)s/" batch_size: 1 } }
layer { name: "silence" type: "Silence" bottom: "shared" bottom: "labels" }
"""
OWN_ITEMS = """
from engine.comm.world import world
from tests.solver.harness import *
world = world()
for net, size in ((OWN_NET, 8), (SHARED_FIRST + OWN_NET, 3)):
    solver = make_solver("max_epoch: 2", net % {{"folder": {folder!r}}}, world=world)
    assert (solver.calendar.size, solver.param.max_iter) == (size, size), solver.calendar
world.close()
"""


@pytest.mark.mpi
def test_an_epoch_of_sources_that_are_a_rank_s_own(tmp_path):
    """The first data layer decides how long an epoch is."""
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    for rank, count in enumerate((3, 5)):
        (tmp_path / f"list_{rank}.txt").write_text("a.png 0\n" * count)
    done = run_ranks(
        2, OWN_ITEMS.format(folder=str(tmp_path)), names={"OWN_NET": OWN_NET, "SHARED_FIRST": SHARED_FIRST}
    )
    assert done.returncode == 0, done.stderr


class Seen(Observer):
    def __init__(self):
        self.records = []

    def test(self, record):
        self.records.append(record)


@pytest.mark.parametrize("text", ["test_interval: 5 max_iter: 10", "test_epoch: 0.1 max_epoch: 0.2"])
def test_without_test_iter_the_whole_set_is_tested(text):
    tests = Seen()
    solver = make_solver(text, digits_net(), observers=[tests])
    solver.solve()
    assert len(tests.records) == 3 and tests.records[0].iteration == 0
    config = solver.test_nets.evaluators[0]._config
    whole = Evaluator(config, World(), share=solver.net)
    for name, value in whole.run().items():
        assert np.array_equal(tests.records[-1].outputs[name], value)
    solver.close()


def test_without_test_iter_a_set_must_end():
    with pytest.raises(ConfigError, match=r"test_interval without test_iter tests the whole set.*give test_iter"):
        make_solver("test_interval: 5", DUMMY)
