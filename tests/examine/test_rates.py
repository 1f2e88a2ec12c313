"""`engine find_rate`: the rates that it tries, where it ends, what it suggests, and that it leaves no files behind."""

import csv
import json
import os
import sys

import numpy as np
import pytest

from engine.cli import main
from engine.config import parse_solver
from engine.examine.rates import Rates, _range_test, describe, scaling_of, smooth
from tests.mpi import run_ranks
from tests.solver.harness import make_solver
from tests.solver.test_goals import digits_net

SOLVER = """
net: "{folder}/net.prototxt" base_lr: 0.01 lr_policy: "multistep" gamma: 0.1 stepvalue: 5 max_epoch: 2 momentum: 0.9
warmup_iter: 5 lr_scaling {{ base_batch: 4 }} test_interval: 5 snapshot: 5 snapshot_keep: 1 snapshot_best: "accuracy"
early_stopping {{ patience: 1 }} snapshot_prefix: "{folder}/net" display: 1 random_seed: 3 average_loss: 20 ema: 0.9
"""


@pytest.fixture
def solver(tmp_path):
    """Writes a solver; returns the words of `engine find_rate` for it."""
    (tmp_path / "net.prototxt").write_text(digits_net())
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path))
    return ["find_rate", "--solver", str(tmp_path / "solver.prototxt")]


def test_the_curve_of_a_net(tmp_path, solver, capfd):
    before = sorted(os.listdir(tmp_path))
    arguments = ["--from", "1e-4", "--to", "1e6", "--iterations", "80", "--output", f"{tmp_path}/rates.png"]
    assert main([*solver, *arguments, "--json", f"{tmp_path}/rates.json"]) == 0
    told = capfd.readouterr()
    found = json.loads((tmp_path / "rates.json").read_text())
    rates = np.array(found["rates"])
    np.testing.assert_allclose(rates[1:] / rates[:-1], 1e10 ** (1 / 79), rtol=1e-4)
    assert rates[0] == pytest.approx(1e-4) and found["diverged"] and 20 < len(rates) < 80
    assert found["scale"] == 4  # a batch of 16 by a base_batch of 4
    assert 1e-3 < found["steepest"] < found["lowest"] < rates[-1]
    assert found["suggestion"] == found["steepest"] / 4
    assert f"base_lr: {found['suggestion']:.2g}" in told.out and "Testing net" not in told.err
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "rates.json", "rates.png", "rates.png.csv"])
    with open(tmp_path / "rates.png.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == found["losses"]
    assert found["smoothed"] == smooth(found["losses"])
    # It trains as a solver does, so the first losses are those of a solver at these rates.
    text = f'max_iter: 3 momentum: 0.9 random_seed: 3 lr_policy: "exp" base_lr: 1e-4 gamma: {1e10 ** (1 / 79):.9g}'
    plain = make_solver(text, digits_net())
    plain.feeder.start()
    for loss in found["losses"][:3]:
        plain.step()
        assert plain.state.loss == pytest.approx(loss, rel=1e-5)
    plain.feeder.close()
    plain.close()


def test_one_rank_does_for_a_run_that_wants_several(solver):
    assert main([*solver, "--iterations", "5", "--set", "comm_param.elastic.min_ranks=2"]) == 0


def test_momentum_and_decay_stay_what_they_are():
    text = f"""net_param {{ {digits_net()} }} base_lr: 0.1 lr_policy: "fixed" max_iter: 1000 momentum: 0.5
        weight_decay: 0.1 momentum_policy: "poly" weight_decay_policy: "poly" max_momentum: 0.9"""
    param = _range_test(parse_solver(text, "x"), 1e-3, 1, 10).message
    assert not param.HasField("weight_decay_policy") and not param.HasField("momentum_policy")
    param = _range_test(
        parse_solver(text.replace('momentum_policy: "poly"', 'momentum_policy: "opt"'), "x"), 1e-3, 1, 10
    )
    assert param.message.momentum_policy == "opt"


def test_the_steepest_line():
    """The loss falls between rates of 0.01 and 0.1, and is flat elsewhere."""
    rates = np.geomspace(1e-4, 10, 101)
    losses = np.interp(np.log10(rates), [-2, -1], [2.0, 1.0]) + 0.3 * (rates > 1)
    found = Rates(rates.tolist(), losses.tolist(), losses.tolist(), False, 101)
    assert found.steepest == pytest.approx(10**-1.5, rel=0.3)
    assert "has not diverged by 10" in describe(found)
    flat = Rates(rates.tolist(), [1.0] * 101, [1.0] * 101, False, 101)
    assert flat.steepest is None and "does not fall between 0.0001 and 10" in describe(flat)
    assert "not finite at the first rate" in describe(Rates([], [], [], True, 10))
    short = Rates([1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 1.0, 9.0], [3.0, 2.0, 1.0, 9.0], True, 8)
    assert short.steepest is None
    assert describe(short) == (
        "The loss falls up to 4, which is for 3 of 4 rates only: begin lower (--from), or try more --iterations"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_fall_within_the_noise_is_told(seed):
    """With small batches the loss is noisy, and the steepest line may be one through noise."""
    rates, noise = np.geomspace(1e-5, 10, 100), np.random.default_rng(seed).normal(0, 0.4, 100)

    def told(low):
        losses = (np.interp(np.log10(rates), [-3, -1], [2.3, low]) + noise).tolist()
        return describe(Rates(rates.tolist(), losses, smooth(losses), False, 100))

    doubt = "in all, which is too little to tell: try more --iterations, or a larger batch"
    assert doubt in told(2.2) or "does not fall" in told(2.2)
    assert doubt not in told(0.6) and "Suggestion: base_lr" in told(0.6)


@pytest.mark.parametrize(
    "scaling, suggestion",
    [
        ("base_batch: 4", "base_lr: 0.0063  # at most 0.0083, with a warm-up; lr_scaling makes it 4 times as much"),
        ("rule: SQRT base_batch: 4", "at most 0.017, with a warm-up; lr_scaling makes it 2 times as much"),
        ("base_batch: 4 cap: 0.03", "with a warm-up; lr_scaling makes it 4 times as much"),
        ("base_batch: 4 cap: 0.02", "with a warm-up; lr_scaling makes it 4 times as much, 0.02 at most (cap)"),
        ("base_batch: 16", "base_lr: 0.025  # at most 0.033, with a warm-up"),
    ],
)
def test_what_lr_scaling_multiplies_is_divided_by_it(scaling, suggestion):
    """The rate was found in global batches of 16, and base_lr is that of a base batch."""
    rates = np.geomspace(1e-4, 10, 101)
    losses = np.interp(np.log10(rates), [-2, -1], [2.0, 1.0]) + 0.3 * (rates > 1)
    given = parse_solver(f"base_lr: 7 lr_scaling {{ {scaling} }}").message
    found = Rates(rates.tolist(), losses.tolist(), losses.tolist(), False, 101, *scaling_of(given, 16))
    assert describe(found).splitlines()[1].endswith(suggestion)


def test_a_smoothed_loss_begins_with_the_first():
    assert smooth([3.0]) == pytest.approx([3.0]) and smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0] * 3)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--from", "1", "--to", "0.1"], "--from and --to: expected a rising range, got 1 to 0.1"),
        (["--iterations", "4"], "--iterations: expected 5 or more, got 4"),
        (["--output", "curve.jpg"], "--output: expected a name that ends with .png, .svg, .pdf, got curve.jpg"),
        (["--output", "/nowhere/curve.png"], "/nowhere/curve.png: cannot be written: there is no folder /nowhere"),
    ],
)
def test_bad_input_is_one_line(solver, arguments, told, capfd):
    assert main([*solver, *arguments]) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("engine: ")]
    assert lines == [f"engine: {told}"]


@pytest.mark.parametrize("rate", ["1e-50", "0", "1e39", "x"])
def test_rates_that_float32_does_not_hold(solver, rate, capfd):
    assert main([*solver, "--from", rate]) == 2
    assert f"argument --from: expected a rate from 1e-30 to 1e30, got '{rate}'" in capfd.readouterr().err


def test_without_matplotlib_there_is_the_table(tmp_path, solver, monkeypatch, capfd):
    """The table's name is the curve's with .csv appended, since rates.csv may be somebody else's."""
    (tmp_path / "rates.csv").write_text("mine")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*solver, "--iterations", "6", "--output", f"{tmp_path}/rates.png"]) == 0
    assert "The curve is left out" in capfd.readouterr().err
    assert (tmp_path / "rates.png.csv").exists() and not (tmp_path / "rates.png").exists()
    assert (tmp_path / "rates.csv").read_text() == "mine"


def test_a_matplotlib_that_fails_leaves_out_the_curve_alone(tmp_path, solver, monkeypatch, capfd):
    monkeypatch.setattr("engine.examine.rates._draw", lambda *_: 1 / 0)
    files = ["--output", f"{tmp_path}/rates.png", "--json", f"{tmp_path}/x.json"]
    assert main([*solver, "--iterations", "6", *files]) == 0
    assert "rates.png: cannot be drawn: ZeroDivisionError" in capfd.readouterr().err
    assert (tmp_path / "rates.png.csv").exists() and (tmp_path / "x.json").exists()


def test_a_table_that_cannot_be_written_is_told_before_the_test(tmp_path, solver, capfd):
    (tmp_path / "rates.png.csv").mkdir()
    assert main([*solver, "--output", f"{tmp_path}/rates.png"]) == 1
    assert "rates.png.csv: cannot be written: it is a folder" in capfd.readouterr().err


@pytest.mark.mpi
def test_ranks_find_what_one_finds_and_stop_together(tmp_path, solver):
    """They go up to rates at which the weights of both are no longer finite."""
    arguments = [*solver, "--to", "1e30", "--iterations", "40"]
    (tmp_path / "net.prototxt").write_text(digits_net(8))
    done = run_ranks(2, ["-m", "engine", *arguments, "--json", f"{tmp_path}/two.json"], timeout=100)
    assert done.returncode == 0, done.stderr
    (tmp_path / "net.prototxt").write_text(digits_net(16))
    assert main([*arguments, "--json", f"{tmp_path}/one.json"]) == 0
    two, one = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("two", "one"))
    assert two["diverged"] and len(two["losses"]) >= 5
    np.testing.assert_allclose(two["losses"][:5], one["losses"][:5], rtol=1e-4)


@pytest.mark.mpi
def test_ranks_that_hold_parts_stop_together(tmp_path, solver):
    """The weights of only one rank are no longer finite."""
    net = digits_net(8).replace('type: "InnerProduct"', 'type: "InnerProduct" multinode { model_parts: 2 }')
    (tmp_path / "net.prototxt").write_text(net)
    program = f"""
import sys
import numpy as np
from engine.cli import main
from engine.comm.world import world
from engine.examine import rates
class Broken(rates._Solver):
    def step(self):
        super().step()
        if self.iteration == 7 and self.world.rank == 1:
            self.optimizer.wait()
            self.optimizer.weights[-1] = np.nan
rates._Solver = Broken
sys.exit(main({[*solver, "--iterations", "20", "--json", f"{tmp_path}/two.json"]}))
"""
    done = run_ranks(2, program, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "two.json").read_text())
    assert found["diverged"] and len(found["losses"]) == 7


@pytest.mark.parametrize("mode", ["ASYNC", "LOCAL"])
def test_modes_in_which_ranks_see_different_losses(solver, capfd, mode):
    assert main([*solver, "--set", f"comm_param.mode={mode}"]) == 1
    assert "ranks would see the loss diverge at different steps" in capfd.readouterr().err


def test_a_solver_with_test_nets_of_its_own(tmp_path, solver):
    text = (tmp_path / "solver.prototxt").read_text().replace("net:", "train_net:")
    (tmp_path / "solver.prototxt").write_text(text + f'test_net: "{tmp_path}/net.prototxt" test_state {{ stage: "x" }}')
    assert main([*solver, "--iterations", "5"]) == 0
