"""The solver's loop: what happens at which iteration, what is written, and what is logged."""

import logging
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.config import parse_net
from engine.data.convert_imageset import convert_imageset
from engine.errors import CommError, ConfigError, EngineError, NumericalError, WeightsError
from engine.report.log import GlogFormatter
from engine.report.observer import Observer
from engine.report.timeline import Timeline
from engine.solver.signals import EFFECTS, STOP, Signals
from engine.weights import read_caffemodel, read_solverstate, write_caffemodel
from tests.mpi import run_ranks
from tests.solver.harness import DIGITS, all_fine, different, digits_net, learned, make_solver, send_at, solve

# An inner product and its loss, on one batch that never changes. Tests set x and the label.
SMALL_NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 5 bias_term: false weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

# The patterns that Caffe's parse_log.py looks for, and the time at the beginning of every line.
GLOG = re.compile(r"^[IWEF](\d{4}) (\d\d:\d\d:\d\d\.\d{6}) +\d+ \S+:\d+\] ")
ITERATION = re.compile(r"Iteration (\d+)")
NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?|nan|inf)"
RATE = re.compile(rf"lr = {NUMBER}$")
SMOOTHED = re.compile(rf"Iteration \d+(?: \({NUMBER} iter/s, {NUMBER}s/\d+ iters\))?, loss = {NUMBER}$")
OUTPUT = re.compile(rf"(Train|Test) net output #(\d+): (\S+) = {NUMBER}(?: \(\* {NUMBER} = {NUMBER} loss\))?$")


class Log(logging.Handler):
    """Collects the lines of a run's log, and parses them."""

    def __init__(self):
        super().__init__()
        self.setFormatter(GlogFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).split("\n")

    def parse(self) -> dict[str, list[tuple[int, float]]]:
        """Returns what the log says was measured: (iteration, value) in the order of the lines, by name."""
        found: dict[str, list[tuple[int, float]]] = {}
        iteration = -1
        for line in self.lines:
            assert GLOG.match(line), line
            iteration = int(match.group(1)) if (match := ITERATION.search(line)) else iteration
            if match := OUTPUT.search(line):
                found.setdefault(f"{match.group(1)} {match.group(3)}", []).append((iteration, float(match.group(4))))
            if match := RATE.search(line):
                found.setdefault("lr", []).append((iteration, float(match.group(1))))
            if match := SMOOTHED.search(line):
                found.setdefault("smoothed", []).append((iteration, float(match.group(3))))
        return found

    def has(self, text: str) -> bool:
        """Returns whether a line has this text."""
        return any(text in line for line in self.lines)


@pytest.fixture
def log():
    """Yields the log of this process, from level INFO on."""
    handler, logger = Log(), logging.getLogger("engine")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def small_solver(text: str, x: float = 1.0, folder: Path | str = ""):
    """Makes a solver of SMALL_NET, with x scaled by a factor."""
    solver = make_solver(text, SMALL_NET, folder)
    values = np.random.default_rng(1).standard_normal((4, 3))
    solver.net.blobs["x"].set((x * values).astype(np.float32))
    solver.net.blobs["label"].set(np.array([0, 4, 2, 0], np.float32))
    return solver


# Tests and display


@pytest.mark.parametrize(("initial", "expected"), [("true", [0, 3, 6, 7]), ("false", [3, 6, 7])])
def test_tests_and_display_come_at_their_iterations(log, initial, expected):
    solve(f"max_iter: 7 test_iter: 2 test_interval: 3 test_initialization: {initial} display: 2", digits_net())
    found = log.parse()
    assert [i for i, _ in found["Test accuracy"]] == [i for i, _ in found["Test loss"]] == expected
    assert [i for i, _ in found["Train loss"]] == [i for i, _ in found["lr"]] == [0, 2, 4, 6]
    assert [i for i, _ in found["smoothed"]] == [0, 2, 4, 6, 7]
    assert log.has("Iteration 6, Testing net (#0)") and log.has("Optimization Done.")
    assert all(0 <= accuracy <= 1 for _, accuracy in found["Test accuracy"])


def test_a_test_of_no_iterations_tests_nothing(log):
    solve("max_iter: 4 test_iter: 0 test_interval: 2", digits_net())
    assert "Test loss" not in log.parse() and log.has("Iteration 2, Testing net (#0)") and log.has("Optimization Done.")


def test_a_script_goes_back_before_where_it_began(log, tmp_path):
    """The time left is computed from the iterations since it went back, not since its first start."""
    first, other = (small_solver("max_iter: 8 display: 1", folder=tmp_path) for _ in range(2))
    for until in (3, 6):
        first.run(until)
        first.snapshot()
    other.restore(f"{tmp_path}/net_iter_6.solverstate")
    other.run(8)
    other.restore(f"{tmp_path}/net_iter_3.solverstate")
    log.lines.clear()
    other.run(8)
    assert ["left" in line for line in log.lines if "have passed" in line] == [True, True, True, False]


def test_average_loss_is_the_mean_of_the_last_ones(log):
    solve("max_iter: 6 display: 1 average_loss: 3", digits_net())
    found = log.parse()
    raw = [loss for _, loss in found["Train loss"]]
    expected = [np.mean(raw[max(0, i - 2) : i + 1]) for i in range(6)] + [np.mean(raw[3:])]
    assert [loss for _, loss in found["smoothed"]] == pytest.approx(expected, rel=1e-4)
    assert len(set(raw)) == 6


def test_a_weighted_blob_counts_as_its_layer_has_left_it(log):
    """The loss counts the blob before the next layer changes it in place, here to 9 times the value."""
    net = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 4 dim: 3 }
  data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" loss_weight: 0.5
  inner_product_param { num_output: 2 bias_term: false weight_filler { type: "constant" value: 1 } } }
layer { name: "power" type: "Power" bottom: "ip" top: "ip" power_param { power: 2 } }
"""
    solve("max_iter: 1 display: 1", net)
    assert log.parse()["smoothed"][0] == (0, pytest.approx(0.5 * 4 * 2 * 3))


def test_a_test_sees_the_weights_of_its_iteration(log, tmp_path):
    """The test at iteration 10 equals the test at iteration 0 of a run that begins with the weights of iteration 10.
    Each is of the whole test set; with fewer samples a test would go on where the last one ended."""
    solve("test_interval: 10 snapshot: 10", digits_net(), tmp_path)
    tests = log.parse()["Test loss"]
    assert [i for i, _ in tests] == [0, 10, 20]
    log.lines.clear()
    solver = make_solver("test_interval: 10 max_iter: 0", digits_net())
    solver.load_weights([str(tmp_path / "net_iter_10.caffemodel")])
    solver.solve()
    assert log.parse()["Test loss"] == [(0, tests[1][1])]
    assert tests[1][1] != tests[0][1]


RANKS = """
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
set_up(world().rank)
text = "max_iter: 4 test_iter: 5 test_interval: 4 display: 1 average_loss: 2 weight_decay: 0.01 momentum: 0.9"
solver = solve(text, digits_net(24 // world().size), world=world())
first = make_solver(text, digits_net(24), world=world())
values = world().gather([[v.tolist() for v in first.test_nets.evaluators[0].run(n).values()] for n in (5, 2, None)])
if world().rank == 0:
    assert all(value == values[0] for value in values)
    print(values[0])
world().close()
"""


@pytest.mark.mpi
def test_ranks_share_the_test_and_say_what_one_rank_would():
    figures, lines = {}, {}
    for ranks in (1, 2, 3):
        done = run_ranks(ranks, RANKS)
        assert done.returncode == 0, done.stderr
        figures[ranks] = done.stdout
        log = Log()
        log.lines = done.stderr.splitlines()
        lines[ranks] = log.parse()
    assert figures[1] == figures[2] == figures[3], "tests of the same weights differ"
    for ranks in (2, 3):
        assert lines[ranks].keys() == lines[1].keys() == {"Train loss", "smoothed", "lr", "Test loss", "Test accuracy"}
        for name, points in lines[1].items():
            np.testing.assert_allclose(lines[ranks][name], points, rtol=2e-5)


# Learning rate


def test_plateau_lowers_the_rate_of_a_loss_that_stands_still(log):
    policy = 'lr_policy: "plateau" gamma: 0.1 plateau_winsize: 2 plateau_winsize: 3'
    small_solver(f"{policy} display: 1 max_iter: 7", 0).solve()
    rates = [rate for _, rate in log.parse()["lr"]]
    assert rates == pytest.approx([0.01, 0.01, 1e-3, 1e-3, 1e-3, 1e-4, 1e-4])


def test_parameters_with_lr_mult_0_stand_still():
    frozen = digits_net().replace("param { lr_mult: 1 } param { lr_mult: 2", "param { lr_mult: 0 } param { lr_mult: 0")
    solver = make_solver("max_iter: 3 momentum: 0.9 weight_decay: 0.1", frozen)
    before = learned(solver)
    solver.solve()
    after = learned(solver)
    moved = ["ip1[0]", "ip1[1]", "ip2[0]", "ip2[1]", "history 2", "history 3", "history 4", "history 5"]
    assert different(before, after) == moved


# Files


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("max_iter: 4 snapshot: 2", ["net_iter_2", "net_iter_4"]),
        ("max_iter: 5 snapshot: 2", ["net_iter_2", "net_iter_4", "net_iter_5"]),
        ("max_iter: 5 snapshot: 2 snapshot_after_train: false", ["net_iter_2", "net_iter_4"]),
        ("max_iter: 2 snapshot_after_train: false", []),
        ('max_iter: 2 snapshot_prefix: "%s/a_%#_of_%*"', ["a_0_of_1_iter_2"]),
        ('max_iter: 2 snapshot_prefix: "%s/"', ["net_iter_2"]),  # a folder: the name is that of the solver's file
        ('max_iter: 2 snapshot_prefix: "%s"', ["net_iter_2"]),
        ('max_iter: 2 snapshot_prefix: ""', ["net_iter_2"]),  # in the solver's folder
    ],
)
def test_snapshots_are_named_as_caffe_names_them(tmp_path, text, names):
    solver = make_solver(text.replace("%s", str(tmp_path)), SMALL_NET, tmp_path)
    solver.solve()
    written = sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock")
    assert written == sorted(name + tail for name in names for tail in (".caffemodel", ".solverstate"))
    for name in names:
        assert read_solverstate(tmp_path / f"{name}.solverstate").iteration == int(name.rpartition("_")[2])
        assert read_caffemodel(tmp_path / f"{name}.caffemodel")["ip"][0].shape == (5, 3)


def test_hdf5_snapshots_go_on(tmp_path):
    pytest.importorskip("h5py")
    text = "snapshot_format: HDF5 momentum: 0.9 snapshot: 8 max_iter: 12"
    whole = solve(text, digits_net(), tmp_path)
    assert {path.name for path in tmp_path.glob("*_8.*")} == {"net_iter_8.caffemodel.h5", "net_iter_8.solverstate.h5"}
    resumed = solve(text, digits_net(), restore=tmp_path / "net_iter_8.solverstate.h5")
    assert different(learned(whole), learned(resumed)) == []


def test_layers_that_another_file_has_do_not_keep_their_initial_values(tmp_path, log):
    solver = make_solver("max_iter: 1", digits_net())
    blobs, files = solver.net.weights_by_layer(), []
    for name, layers in (("body", ("conv", "ip1")), ("head", ("ip2",))):
        files.append(str(tmp_path / f"{name}.caffemodel"))
        write_caffemodel(files[-1], solver.net.message, {layer: blobs[layer] for layer in layers})
    solver.load_weights(files)
    assert not log.has("keeps its initial values")
    solver.load_weights(files[:1])
    assert log.has(f"Layer ip2 is not in {files[0]}: it keeps its initial values")


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_a_file_with_none_of_the_layers_is_refused(tmp_path, suffix):
    solver = make_solver("max_iter: 1", digits_net())
    good, other = (str(tmp_path / f"{name}.caffemodel{suffix}") for name in ("good", "other"))
    write_caffemodel(good, solver.net.message, solver.net.weights_by_layer())
    stranger = parse_net('layer { name: "c1" type: "InnerProduct" inner_product_param { num_output: 2 } }').message
    write_caffemodel(other, stranger, {"c1": [np.ones((2, 3), np.float32)]})
    before = learned(solver)
    with pytest.raises(WeightsError, match="none of its layers is one of the net's, which has conv, ip1, ip2") as error:
        solver.load_weights([other])
    assert str(error.value).startswith(other) and different(before, learned(solver)) == []
    with pytest.raises(WeightsError, match="none of its layers") as error:
        solver.load_weights([good, other])
    assert str(error.value).startswith(other)


def test_fine_tuning_starts_a_renamed_layer_afresh(tmp_path, log):
    solve("momentum: 0.9", digits_net(), tmp_path)
    trained = read_caffemodel(tmp_path / "net_iter_20.caffemodel")
    other = digits_net().replace('"ip2"', '"ip_new"').replace("num_output: 10", "num_output: 12")
    fresh, tuned = (make_solver("momentum: 0.9 max_iter: 1", other) for _ in range(2))
    tuned.load_weights([str(tmp_path / "net_iter_20.caffemodel")])
    before = tuned.net.weights_by_layer()
    for layer in ("conv", "ip1"):
        for ours, theirs in zip(before[layer], trained[layer], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(before["ip_new"][0], fresh.net.weights_by_layer()["ip_new"][0])
    assert log.has("Layer ip_new is not in") and tuned.iteration == 0
    assert not any(blob.any() for blob in tuned.optimizer.history.to_blobs())
    tuned.solve()
    assert different(learned(tuned), learned(fresh))

    wrong = make_solver("", digits_net().replace("num_output: 10", "num_output: 12"))
    with pytest.raises(WeightsError, match=r"layer 'ip2', blob 0: the file has 10 x 32, the net 12 x 32"):
        wrong.load_weights([str(tmp_path / "net_iter_20.caffemodel")])


def test_history_is_in_the_order_of_the_file_whatever_is_fused(tmp_path):
    """BVLC's SolverState has a blob for each parameter, in the order of the layers."""
    net = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scale" }
layer { name: "loss" type: "EuclideanLoss" bottom: "scale" bottom: "ip" top: "loss" }
"""
    # The net's x is read twice, so the layers of the chain BatchNorm + Scale do not stand one after the other.
    solve("max_iter: 1", net, tmp_path)
    shapes = [blob.shape for blob in read_solverstate(tmp_path / "net_iter_1.solverstate").history]
    assert shapes == [(3,), (3,), (1,), (3, 3), (3,), (3,)]


# Signals


@pytest.mark.parametrize(
    ("effects", "number", "iterations"),
    [
        (("stop", "snapshot"), signal.SIGINT, [4]),
        (("stop", "snapshot"), signal.SIGTERM, [4]),
        (("stop", "snapshot"), signal.SIGHUP, [4, 8]),
        (("snapshot", "none"), signal.SIGINT, [4, 8]),
        (("snapshot", "none"), signal.SIGHUP, [8]),
        (("none", "stop"), signal.SIGHUP, [4]),
    ],
)
def test_signals_do_what_they_are_set_to(tmp_path, effects, number, iterations):
    solver = make_solver("max_iter: 8", digits_net(), tmp_path, signals=Signals(*effects))
    send_at(solver, 3, number)
    assert solver.solve() == (iterations[-1] == 8)
    assert sorted(path.stem for path in tmp_path.glob("*.solverstate")) == [f"net_iter_{i}" for i in iterations]


@pytest.mark.parametrize("sigint", EFFECTS)
@pytest.mark.parametrize("sighup", EFFECTS)
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_sigint_interrupts_what_stops_only_where_it_stops(sigint, sighup, first):
    """Ctrl-C raises KeyboardInterrupt only if the run is about to stop already; before that it has the effect that
    --sigint_effect gives it."""
    effect = EFFECTS[sighup] if first == signal.SIGHUP else STOP
    with Signals(sigint, sighup) as signals:
        os.kill(os.getpid(), first)
        assert signals.flags == effect
        if effect == STOP and sigint == "stop":
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            return
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.flags == effect | EFFECTS[sigint]


def test_a_stop_without_snapshot_after_train_writes_nothing(tmp_path):
    solver = make_solver("snapshot_after_train: false", digits_net(), tmp_path)
    send_at(solver, 2, signal.SIGINT)
    assert not solver.solve() and not list(tmp_path.iterdir())


@pytest.mark.mpi
def test_a_signal_to_one_rank_stops_all_at_the_same_iteration(tmp_path):
    program = f"""
import signal
from engine.comm.world import world
from tests.solver.harness import *
solver = make_solver("max_iter: 1000", digits_net(), {str(tmp_path)!r}, world())
if world().rank == 1:
    send_at(solver, 3, signal.SIGTERM)
assert not solver.solve()
changed = different(learned(solver), in_files(Path({str(tmp_path)!r}), 5))
print(world().gather(solver.iteration), world().gather(changed))
solver.close()
world().close()
"""
    done = run_ranks(2, program)
    assert done.returncode == 0, done.stderr
    # Ranks agree on stopping while a step is under way, so a signal in step 3 is obeyed after step 4.
    assert "[5, 5] [[], []]" in done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize(("comm", "last"), [("", 4), ("comm_param { mode: LOCAL sync_every: 4 }", 7)])
def test_several_ranks_say_after_which_iteration_they_stop(comm, last):
    """The signal comes in iteration 3, while the ranks have already agreed to go on with the next one."""
    program = f"""
import os, signal, time
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
set_up(world().rank)
solver = make_solver("max_iter: 100 {comm}", digits_net(), world=world())
forward = solver.net.run_forward
def stop(counters):
    if (world().rank, solver.iteration) == (0, 3):
        os.kill(os.getpid(), signal.SIGTERM)
        while solver.signals.on_stop:  # another thread tells
            time.sleep(0.01)
    return forward(counters)
solver.net.run_forward = stop
assert not solver.solve() and solver.iteration == {last} + 1, solver.iteration
solver.close()
world().close()
print("fine", flush=True)
"""
    assert f"] SIGTERM: finishing iteration {last} at the latest; Ctrl-C" in all_fine(2, program)


# Many ranks

STATISTICS = """
from engine.comm.world import world
from tests.solver.harness import *
batch_norm = 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }'
net = digits_net().replace('layer { name: "relu"', batch_norm + 'layer { name: "relu"')
solver = make_solver("max_iter: 4", net, %r, world())
solver.replica.share()
solver.feeder.start(0)
for _ in range(4):
    solver.step()
mine = [blob.tolist() for blob in solver.net.weights_by_layer()["bn"]]
solver.snapshot()
parts = world().gather(mine)
if world().rank == 0:
    assert parts[0] != parts[1], "the ranks have seen the same samples"
    for blob, *values in zip(read_caffemodel(solver.snapshots.names(solver.iteration)[0])["bn"], *parts):
        np.testing.assert_allclose(blob, np.mean(values, axis=0), rtol=1e-6)
    print("averaged")
solver.close()
world().close()
"""


INTERRUPTED = """
import os, signal, threading, time
from engine.comm.world import world
from tests.solver.harness import *
world = world()
signal.signal(signal.SIGINT, signal.default_int_handler)
solver = make_solver("comm_param { servers: 0 }", digits_net(8), world=world)
solver.feeder.start(0)
begin = time.monotonic()
if world.rank == 1:
    time.sleep(20)
else:
    threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    solver.step()
except KeyboardInterrupt:
    world.abort("soon" if time.monotonic() - begin < 10 else "late")
"""


@pytest.mark.mpi
def test_an_interrupt_ends_the_wait_for_other_ranks():
    assert run_ranks(2, INTERRUPTED).stderr == "soon\n"


UNLIKE = """
import numpy as np
from engine.comm.world import world
from tests.solver.harness import *
world = world()
solver = make_solver("", digits_net(8), world=world)
solver.net.outputs = lambda: {"alike": np.full(2, world.rank, np.float32), "boxes": np.ones(3 + 2 * world.rank)}
figures = solver._figures().outputs
assert figures["alike"].tolist() == [0.5, 0.5] and figures["boxes"].tolist() == [1.0] * (3 + 2 * world.rank)
solver.close()
world.close()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_outputs_of_other_shapes_on_other_ranks_are_shown_of_one():
    """Outputs of the same shape are averaged over ranks. If their shapes differ, a rank shows its own."""
    all_fine(2, UNLIKE)


@pytest.mark.mpi
def test_snapshots_hold_the_mean_of_the_ranks_statistics(tmp_path):
    done = run_ranks(2, STATISTICS % str(tmp_path))
    assert done.stdout == "averaged\n", done.stderr


# Values that are not finite


def test_a_loss_that_is_not_finite_names_iteration_and_layer(tmp_path):
    solver = small_solver("base_lr: 1e38 max_iter: 9 snapshot: 4", 1e6, tmp_path)
    with pytest.raises(NumericalError, match="iteration 1: the loss is nan; layer 'ip' is the first whose output is"):
        solver.solve()
    assert not list(tmp_path.iterdir())
    bad = small_solver("")
    bad.net.params["ip"][0].set(np.full(15, np.inf, np.float32))
    with pytest.raises(NumericalError, match="iteration 0: the loss is nan; layer 'ip' is the first") as error:
        bad.solve()
    assert "base_lr is not the cause" in str(error.value) and "Lower base_lr" not in str(error.value)


def test_data_that_are_not_finite_are_named(tmp_path):
    """The message does not mention base_lr, which is not the cause."""
    h5py = pytest.importorskip("h5py")
    values = np.ones((6, 3), np.float32)
    values[4, 1] = np.nan
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = values, np.zeros((6, 1), np.float32)
    (tmp_path / "list").write_text(f"{tmp_path}/x.h5\n")
    net = f"""layer {{ name: "data" type: "HDF5Data" top: "x" top: "y"
          hdf5_data_param {{ source: "{tmp_path}/list" batch_size: 3 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {{ num_output: 1 }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "loss" }}"""
    with pytest.raises(NumericalError) as error:
        make_solver("", net).solve()
    said = str(error.value)
    assert "iteration 1: the loss is nan; layer 'data' " in said and "base_lr" not in said
    assert f"top 'x' holds nan in sample 1 of the batch. Its key is '{tmp_path}/x.h5[4]'" in said


def test_data_that_are_not_known_are_not_to_blame(tmp_path):
    """A NaN in LpqLoss's target means that the target is not known."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["y"] = np.ones((4, 3), np.float32), np.array([[1, 2], [1, np.nan]] * 2, np.float32)
    (tmp_path / "list").write_text(f"{tmp_path}/x.h5\n")
    net = f"""layer {{ name: "data" type: "HDF5Data" top: "x" top: "y"
          hdf5_data_param {{ source: "{tmp_path}/list" batch_size: 4 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {{ num_output: 2 }} }}
        layer {{ name: "loss" type: "LpqLoss" bottom: "ip" bottom: "y" top: "loss" lpq_loss_param {{ p: 2 q: 1 }} }}"""
    make_solver("max_iter: 3", net).solve()
    solver = make_solver("max_iter: 3", net)
    solver.net.params["ip"][0].set(np.full((2, 3), np.inf, np.float32))
    with pytest.raises(NumericalError, match="layer 'ip' is the first whose output is not finite"):
        solver.solve()


def test_weights_that_are_not_finite_are_seen_behind_a_relu6():
    """ReLU6 fused into a convolution turns NaN into 0, so the loss stays finite."""
    net = """layer { name: "data" type: "DummyData" top: "x" top: "l" dummy_data_param {
        shape { dim: 4 dim: 3 dim: 12 dim: 12 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler {} } }"""
    for bottom, top in (("x", "a"), ("a", "b"), ("b", "c")):
        param = 'num_output: 16 kernel_size: 3 weight_filler { type: "msra" }'
        net += f"""layer {{ name: "{top}" type: "Convolution" bottom: "{bottom}" top: "{top}"
            convolution_param {{ {param} }} }} layer {{ name: "r{top}" type: "ReLU6" bottom: "{top}" top: "{top}" }}"""
    net += """layer { name: "ip" type: "InnerProduct" bottom: "c" top: "ip" inner_product_param { num_output: 5
        weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "l" top: "loss" }"""
    solver = make_solver("base_lr: 0.1 display: 1", net)
    weights = solver.net.params["b"][0]
    weights.set(np.full(weights.shape, np.nan, np.float32))
    with pytest.raises(NumericalError, match=r"iteration 0: the update has made weights of b\[0\] infinite or NaN"):
        solver.solve()


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    """No forward follows the last update before a snapshot, so the snapshot has to look at the weights itself."""
    solver = small_solver("max_iter: 5 snapshot: 1", folder=tmp_path)
    solver.solve()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    solver = small_solver("base_lr: 1e38 max_iter: 5 snapshot: 1", 1e6, tmp_path)
    with pytest.raises(NumericalError, match=r"iteration 1: the update has made weights of ip\[0\] infinite or NaN"):
        solver.solve()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class Speechless(Observer):
    """Raises an error at the end of the run, as an observer that cannot write its file does."""

    def __init__(self, error: Exception):
        self.error = error

    def end(self, trace) -> None:
        raise self.error


@pytest.mark.parametrize("error", [EngineError("cannot be written", "x/t.json"), OSError(28, "full"), MemoryError()])
def test_a_finished_run_is_done_whatever_observers_cannot_write(error, log):
    solver = make_solver("max_iter: 2", digits_net(), observers=[Speechless(error)])
    assert solver.solve() and log.has(f"Speechless: {error}") and log.has("Optimization Done.")
    solver.close()


def test_observers_do_not_hide_that_ranks_disagree():
    """The failure of an observer is only told, but a CommError ends the run."""
    solver = make_solver("max_iter: 2", digits_net(), observers=[Speechless(CommError("rank 1 is gone"))])
    with pytest.raises(CommError, match="rank 1"):
        solver.solve()


def test_a_timeline_that_cannot_be_written_costs_the_timeline(tmp_path, log):
    (tmp_path / "gone").mkdir()
    solver = make_solver("max_iter: 2", digits_net(), observers=[Timeline(str(tmp_path / "gone/t.json"))])
    (tmp_path / "gone").rmdir()
    assert solver.solve() and log.has("t.json: cannot be written: No such file or directory")
    solver.close()


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("lacking, told", [("bee", "label 1 is 'bee' of the one, and 'cat' of the other"), ("", "")])
def test_test_data_with_other_classes_are_told(tmp_path, caplog, lacking, told, converted):
    for part in ("train", "test"):
        for name in {"ant", "bee", "cat"} - ({lacking} if part == "test" else set()):
            (tmp_path / part / name).mkdir(parents=True)
            Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / part / name / "0.png")
        if converted:
            convert_imageset(str(tmp_path / part), None, str(tmp_path / f"{part}_lmdb"))
    kind = "_lmdb" if converted else ""
    layers = [
        f"""layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: {part.upper()} }}
          data_param {{ source: "{tmp_path}/{part}{kind}" batch_size: 1 }} }}"""
        for part in ("train", "test")
    ]
    net = (
        "".join(layers)
        + """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
    )
    make_solver("test_iter: 1 test_interval: 1", net).close()
    found = [text for text in caplog.messages if "differ in their classes" in text]
    assert len(found) == bool(told) and all(told in text for text in found)


@pytest.mark.parametrize(
    "change, told", [("", True), (f'source: "{DIGITS}/digits_test_lmdb"', False), ("rand_skip: 9", False)]
)
def test_two_layers_that_give_the_same_are_told(caplog, change, told):
    """The two halves of a siamese net may be like that by mistake: the order and the crops of a source depend on the
    seed alone."""
    layers = [
        f"""layer {{ name: "{name}" type: "Data" top: "{name}" top: "{name}_label" transform_param {{ crop_size: 6 }}
          data_param {{ source: "{DIGITS}/digits_train_lmdb" batch_size: 16 shuffle: true {changed} }} }}
        layer {{ name: "no_{name}_label" type: "Silence" bottom: "{name}_label" }}"""
        for name, changed in (("left", ""), ("right", change))
    ]
    net = (
        "".join(layers)
        + """layer { name: "ip" type: "InnerProduct" bottom: "left" top: "ip" inner_product_param { num_output: 36 } }
        layer { name: "flat" type: "Flatten" bottom: "right" top: "flat" }
        layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "flat" top: "loss" }"""
    )
    make_solver("max_iter: 0", net).solve()
    words = f"Layers 'left' and 'right' read the same samples of {DIGITS}/digits_train_lmdb and change them alike"
    assert (words in caplog.text) == told


@pytest.mark.parametrize(
    "lines, left, right, words",
    [
        (4, "shuffle: true", "shuffle: true", None),
        (3, "shuffle: true", "shuffle: true", "they have 4 and 3 items"),
        (3, "", "", "they have 4 and 3 items"),
        (4, "", "shuffle: true", "only 'right' has shuffle: true"),
        (4, "", "rand_skip: 4", "they differ in rand_skip"),
        (3, "", "batch_size: 1", None),  # not pairs, because the batches have different sizes
    ],
)
def test_pairs_that_come_apart_are_told(tmp_path, caplog, lines, left, right, words):
    """The two lists of a siamese net have a line of the same number for each pair."""
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "x.png")
    net = ""
    for name, count, fields in (("left", 4, left), ("right", lines, right)):
        (tmp_path / name).write_text(f"{tmp_path}/x.png 0\n" * count)
        size = "" if "batch_size" in fields else "batch_size: 2"
        net += f"""layer {{ name: "{name}" type: "ImageData" top: "{name}" top: "{name}_label"
          image_data_param {{ source: "{tmp_path}/{name}" {size} {fields} }} }}
        layer {{ name: "ip_{name}" type: "InnerProduct" bottom: "{name}" top: "ip_{name}"
          inner_product_param {{ num_output: 1 }} }}
        layer {{ name: "loss_{name}" type: "HingeLoss" bottom: "ip_{name}" bottom: "{name}_label"
          top: "loss_{name}" }}"""
    make_solver("max_iter: 0", net).solve()
    told = [each for each in caplog.messages if "do not give pairs" in each]
    assert bool(told) == bool(words)
    assert not words or f"Layers 'left' and 'right' do not give pairs: {words}. " in told[0]


@pytest.mark.parametrize("learns", [False, True])
def test_a_net_that_does_not_learn_is_told(caplog, learns):
    net = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" param { lr_mult: 0 } param { lr_mult: %d }
          inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }"""
    make_solver("max_iter: 0", net % learns).solve()
    assert ("Nothing is learned: every parameter of the net has lr_mult: 0" in caplog.text) != learns


def test_a_budget_below_a_byte_is_a_budget():
    """It is not rounded to 0, which would mean no budget."""
    with pytest.raises(EngineError, match=r"memory_budget: expected at least .*, got"):
        make_solver("max_iter: 0 memory_budget_mb: 1e-7", digits_net())


def test_a_stage_that_no_rule_names_is_told(log):
    rule = 'include { phase: TEST stage: "scored" }'
    net = digits_net() + f'layer {{ name: "all" type: "Silence" bottom: "ip1" {rule} }}'
    state = 'train_state { stage: "colapse" } test_state { stage: "scored" }'
    make_solver(f"max_iter: 0 test_iter: 1 test_interval: 1 test_initialization: false {state}", net).solve()
    told = [line for line in log.lines if "no rule of the net names stage" in line]
    assert len(told) == 1 and "no rule of the net names stage 'colapse'; known: scored" in told[0]


def test_what_has_no_effect_in_a_net_is_told_once(log):
    """The note is about the nets for training and for tests, which may come from one file."""
    net = digits_net().replace("batch_size: 16", "batch_size: 16 mirror: true")
    make_solver("max_iter: 0 test_iter: 1 test_interval: 1 test_initialization: false", net).solve()
    notes = [line for line in log.lines if "Note: " in line]
    assert len(notes) == 1 and "layer 'data': data_param { mirror } has no effect" in notes[0], notes


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("global_batch: 16", ""),
        ("global_batch: 32 iter_size: 2", ""),
        ("global_batch: 32", "--set 'layer[data@TRAIN].data_param.batch_size=32' or --set iter_size=2 or 2 ranks"),
    ],
)
def test_another_global_batch_than_is_meant_is_told(caplog, fields, told):
    """The message also says what it would take to have the meant batch."""
    make_solver(f"max_iter: 0 {fields}", digits_net()).solve()
    words = "net.prototxt:1:13: rates and iterations are meant for a global_batch of 32, and this run's is 16"
    assert (words in caplog.text and told in caplog.text) == bool(told)
    assert ("are meant for" in caplog.text) == bool(told)


def test_no_batch_is_told_of_where_no_data_layer_has_one(caplog):
    net = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }"""
    make_solver("max_iter: 0 global_batch: 32", net).solve()
    assert "global_batch" not in caplog.text


@pytest.mark.parametrize(
    ("fields", "type_", "cause"),
    [
        ("", "LSTM", ""),
        ("iter_size: 2", "LSTM", "iter_size"),
        ("iter_size: 2", "Lstm", "iter_size"),
        ("batch_growth { stepvalue: 9 }", "RNN", "batch_growth"),
        ("comm_param { elastic { } }", "RNN", "elastic"),
        ("comm_param { elastic { batch: SHRINK } }", "RNN", ""),
        ("iter_size: 2", "Scale", ""),
    ],
)
def test_micro_batches_that_share_states_are_told(caplog, fields, type_, cause):
    net = f"""layer {{ name: "x" type: "Input" top: "x" top: "cont"
          input_param {{ shape {{ dim: 3 dim: 2 dim: 5 }} shape {{ dim: 3 dim: 2 }} }} }}
        layer {{ name: "on" type: "{type_}" bottom: "x" bottom: "cont" top: "y" recurrent_param {{ num_output: 2 }}
          lstm_param {{ num_output: 2 }} scale_param {{ axis: 0 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "y" top: "ip" inner_product_param {{ num_output: 1 }} }}
        layer {{ name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }}"""
    make_solver(f"max_iter: 0 {fields}", net).solve()
    words = f"Layers on carry their states from each micro-batch of an iteration to the next ({cause}). "
    assert (words in caplog.text) == ("each micro-batch" in caplog.text) == bool(cause)


def test_a_test_net_whose_weights_have_another_shape_is_refused():
    net = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 5 } } include { phase: TRAIN } }
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } include { phase: TEST } }
layer { name: "h" type: "InnerProduct" bottom: "x" top: "h" inner_product_param { num_output: 20 } }
layer { name: "loss" type: "Reduction" bottom: "h" top: "loss" loss_weight: 1 }"""
    with pytest.raises(ConfigError) as error:
        make_solver("test_interval: 5 test_iter: 1", net)
    said = str(error.value)
    assert re.match(r"net\.prototxt:3:1: layer 'h', parameter 0: ", said), said
    assert "in phase TEST it would be 20 x 6, but it is 20 x 5 in the train net" in said
    assert "give both nets data of one shape" in said


def test_layers_of_the_test_net_that_nothing_trains_are_told(tmp_path, caplog):
    more = """layer { name: "extra" type: "InnerProduct" bottom: "ip2" top: "extra" include { phase: TEST }
        inner_product_param { num_output: 10 } }
        layer { name: "loss" type: "SoftmaxWithLoss" """
    net = digits_net().replace('layer { name: "loss" type: "SoftmaxWithLoss" ', more)
    make_solver("test_interval: 5 test_iter: 1 max_iter: 0", digits_net()).solve()
    assert "initial values" not in caplog.text
    make_solver("test_interval: 5 test_iter: 1 max_iter: 0", net).solve()
    assert "Test net #0: not in the train net, so with initial values: extra" in caplog.messages


def test_a_whole_test_set_has_one_end():
    """Data layers that do not end together are refused before the first iteration, not at the first test."""
    source = f'data_param {{ source: "{DIGITS}/digits_test_lmdb" backend: LMDB batch_size: 30 }}'
    net = (
        digits_net()
        + f"""layer {{ name: "more" type: "Data" top: "more" include {{ phase: TEST }} {source} }}
        layer {{ name: "silence" type: "Silence" bottom: "more" include {{ phase: TEST }} }}"""
    )
    with pytest.raises(ConfigError, match="data layers differ in size or batch size, so that it has no epoch"):
        make_solver("test_interval: 10 test_initialization: false", net)
    make_solver("test_interval: 10 test_iter: 2", net).close()


def test_a_run_without_iterations_ends_well(tmp_path):
    assert solve("max_iter: 0", digits_net(), tmp_path).iteration == 0
    assert (tmp_path / "net_iter_0.caffemodel").exists()


def test_outputs_are_logged_by_name(log):
    """This is Caffe's order. A loss whose top has no name counts, but is not logged."""
    layers = [("z", "Power", "x"), ("b", "Reduction", "x"), ("a", "Power", "x")]
    net = """layer { name: "x" type: "DummyData" top: "x"
        dummy_data_param { shape { dim: 2 dim: 1 } data_filler { value: 3 } } }"""
    net += "".join(
        f'layer {{ name: "{name}" type: "{type}" bottom: "{bottom}" top: "{name}" }}' for name, type, bottom in layers
    )
    net += """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" }"""
    make_solver("max_iter: 1 display: 1", net).solve()
    found = [(match.group(2), match.group(3)) for line in log.lines if (match := OUTPUT.search(line))]
    assert found == [("0", "a"), ("1", "a"), ("2", "b"), ("3", "z"), ("4", "z")]
