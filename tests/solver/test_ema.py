"""The average of weights (ema) is what NumPy computes; tests and snapshots use it, and training does not depend on
it."""

import json

import numpy as np
import pytest

from engine.comm.world import World
from engine.config import parse_net
from engine.errors import ConfigError
from engine.inference.evaluator import Evaluator
from engine.inference.trained import load
from engine.report.observer import Observer
from engine.weights import read_caffemodel, read_solverstate
from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, different, in_files, learned, make_solver, solve
from tests.solver.test_goals import digits_net

EMA = 'ema: 0.7 momentum: 0.9 lr_policy: "fixed" base_lr: 0.05 '
NET = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ scale: 0.0625 }}
  data_param {{ source: "{DIGITS}/digits_train_lmdb" backend: LMDB batch_size: 20 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 8 kernel_size: 3 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }}
layer {{ name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param {{ bias_term: true }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""


def test_it_is_numpys(tmp_path):
    solver = make_solver(EMA, NET, tmp_path)
    solver.feeder.start()
    average = None
    for iteration in range(30):
        solver.step()
        solver.optimizer.wait()
        now = {
            layer: [np.array(blob, np.float64) for blob in blobs]
            for layer, blobs in solver.net.weights_by_layer().items()
        }
        keep = min(0.7, iteration / (iteration + 9))
        average = average or now
        average = {
            layer: [keep * old + (1 - keep) * new for old, new in zip(average[layer], blobs)]
            for layer, blobs in now.items()
        }
    solver.snapshot()
    solver.feeder.close()
    solver.close()
    found = read_caffemodel(tmp_path / "net_iter_30_ema.caffemodel")
    for layer, blobs in read_caffemodel(tmp_path / "net_iter_30.caffemodel").items():
        for index, (blob, live) in enumerate(zip(found[layer], blobs, strict=True)):
            np.testing.assert_allclose(blob, average[layer][index], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(live, now[layer][index], rtol=1e-7)
            assert np.abs(blob - live).max() > 1e-4, (layer, index)
    assert read_solverstate(tmp_path / "net_iter_30.solverstate").ema == pytest.approx(0.7)


class Seen(Observer):
    def __init__(self):
        self.records = {}

    def test(self, record):
        self.records[record.iteration] = record


TESTED = EMA + "max_iter: 20 test_iter: 5 test_interval: 10 test_initialization: true"


def test_tests_score_it_and_training_does_not_notice(tmp_path):
    solver = make_solver(TESTED + " snapshot: 10", NET, tmp_path)
    seen = Seen()
    solver.observers.append(seen)
    assert solver.solve()
    solver.close()
    alone = Evaluator(parse_net(NET, "net"), World())
    alone.run(5)  # as the test at iteration 0 did: a test begins where the one before has ended
    for iteration in (10, 20):
        load(alone.net, [str(tmp_path / f"net_iter_{iteration}_ema.caffemodel")])
        assert alone.run(5)["loss"] == pytest.approx(seen.records[iteration].outputs["loss"], abs=1e-6)
    plain = solve(TESTED.replace("ema: 0.7", "") + " snapshot: 10", NET, tmp_path)
    assert different(learned(solver), learned(plain)) == []


def test_states_with_and_without_it(tmp_path, caplog):
    caplog.set_level("INFO", "engine")
    (tmp_path / "plain").mkdir()
    solve(TESTED.replace("ema: 0.7", ""), NET, tmp_path / "plain")
    solver = solve(EMA + "max_iter: 20", NET, tmp_path, restore=tmp_path / "plain/net_iter_20.solverstate")
    assert "No average of the weights in" in caplog.text
    np.testing.assert_array_equal(solver.average.weights, solver.optimizer.weights)
    solve(TESTED, NET, tmp_path)
    solve("max_iter: 20 momentum: 0.9", NET, tmp_path / "plain", restore=tmp_path / "net_iter_20.solverstate")
    assert "net_iter_20.solverstate is left out: the solver has no ema" in caplog.text
    before, after = in_files(tmp_path, 20), in_files(tmp_path / "plain", 20)
    assert len(after) < len(before)  # the average's blobs are missing
    assert different({name: before[name] for name in after}, after) == []


def test_a_snapshot_before_the_first_update(tmp_path, caplog):
    """Such a snapshot has no average, and no warning says so: the first update begins it, whatever its memory holds."""
    caplog.set_level("INFO", "engine")
    make_solver(EMA, NET, tmp_path).snapshot()
    solver = make_solver(EMA, NET)
    solver.restore(str(tmp_path / "net_iter_0.solverstate"))
    assert "No average" not in caplog.text
    # If the memory's content were added, these small weights would be rounded away.
    solver.optimizer.weights[:] *= np.float32(1e-9)
    solver.average.step(0)
    solver.average.catch_up()
    np.testing.assert_array_equal(solver.average.weights, solver.optimizer.weights)


def test_a_snapshot_after_the_first_update_has_an_average(tmp_path):
    solve(EMA + "max_iter: 1 snapshot: 1", NET, tmp_path)
    solver = make_solver(EMA, NET)
    solver.restore(str(tmp_path / "net_iter_1.solverstate"))
    assert solver.average.begun
    np.testing.assert_array_equal(solver.average.weights, solver.optimizer.weights)


@pytest.mark.parametrize("norm", ["BatchNorm", "BN"])
def test_statistics_of_any_shape_go_on(norm, tmp_path):
    """The statistics of a BN have shape (1, C, 1, 1)."""
    net = NET.replace('type: "BatchNorm"', f'type: "{norm}"')
    (tmp_path / "again").mkdir()
    solve(TESTED + " snapshot: 10", net, tmp_path)
    solve(TESTED, net, tmp_path / "again", restore=tmp_path / "net_iter_10.solverstate")
    assert different(in_files(tmp_path, 20), in_files(tmp_path / "again", 20)) == []


def test_it_is_of_the_weights_that_updates_leave_where_a_forward_rescales_them(tmp_path):
    """The average does not depend on who looks at it when, e.g. for a snapshot before the next forward."""
    net = NET.replace("num_output: 10", "num_output: 10 bias_term: false normalize: true")
    often, once = (solve(EMA + f"max_iter: 20 {more}", net, tmp_path) for more in ("snapshot: 3", ""))
    np.testing.assert_array_equal(often.average.weights, once.average.weights)


def test_hdf5(tmp_path):
    pytest.importorskip("h5py")
    solve(TESTED + " snapshot: 10 snapshot_format: HDF5", NET, tmp_path)
    whole = read_solverstate(tmp_path / "net_iter_20.solverstate.h5")
    assert (tmp_path / "net_iter_20_ema.caffemodel.h5").exists() and whole.ema == pytest.approx(0.7)
    (tmp_path / "again").mkdir()
    text = TESTED + " snapshot_format: HDF5"
    solve(text, NET, tmp_path / "again", restore=tmp_path / "net_iter_10.solverstate.h5")
    again = read_solverstate(tmp_path / "again/net_iter_20.solverstate.h5")
    for one, other in zip(whole.history, again.history, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", ["1", "-0.1", "nan"])
def test_values_out_of_range(value):
    with pytest.raises(ConfigError, match="ema"):
        make_solver(f"ema: {value}", NET)


@pytest.mark.mpi
def test_ranks_go_on_with_the_same_bits(tmp_path):
    program = """
import json
from engine.comm.world import world
from tests.solver.harness import solve
solver = solve(TESTED + " snapshot: 10", NET, FOLDER, restore=RESTORE, world=world())
found = world().gather(solver.average.weights.tobytes())
if found:
    print(json.dumps([found[0] == found[1]]), flush=True)
world().close()
"""
    (tmp_path / "again").mkdir()
    for folder, restore in ((tmp_path, ""), (tmp_path / "again", tmp_path / "net_iter_10.solverstate")):
        names = {"NET": NET, "TESTED": TESTED, "FOLDER": str(folder), "RESTORE": str(restore)}
        done = run_ranks(2, program, timeout=100, names=names)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [True]
    assert different(in_files(tmp_path, 20), in_files(tmp_path / "again", 20)) == []
    for name in ("net_iter_20_ema.caffemodel", "net_iter_20.caffemodel"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.mpi
def test_the_first_test_of_a_resumed_run_scores_the_average_on_all_ranks(tmp_path):
    done = run_ranks(
        2,
        f"""
from pathlib import Path
from engine.comm.world import world
from engine.report.observer import Observer
from tests.solver.harness import make_solver

class Tests(Observer):
    def __init__(self):
        self.found = {{}}

    def test(self, record):
        self.found.setdefault(record.iteration, float(record.outputs["loss"][0]))

world, folder = world(), Path("{tmp_path}")
text = EMA.replace("0.7", "0.99") + "test_interval: 5 snapshot: 10 random_seed: 3 max_iter: "
first = {{}}
for iterations in (10, 15):
    solver = make_solver(text + str(iterations), NET, folder, world)
    tests = Tests()
    solver.observers.append(tests)
    if iterations > 10:
        solver.restore(str(folder / "net_iter_10.solverstate"))
    assert solver.solve()
    solver.close()
    first = first or dict(tests.found)
assert tests.found[10] == first[10], (tests.found[10], first[10])
world.close()
""",
        timeout=100,
        names={"EMA": EMA, "NET": digits_net(8)},
    )
    assert done.returncode == 0, done.stderr
