"""A run that stops and goes on ends with the same bits as one that has never stopped."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from engine import weights
from engine.data.convert_imageset import Output, convert_imageset
from engine.errors import WeightsError
from engine.report.log import set_up
from engine.report.observer import Observer
from engine.weights import SolverState, read_solverstate, write_solverstate
from tests.data.pictures import random_pixels
from tests.mpi import REPO, run_ranks
from tests.solver.harness import (
    Losses,
    all_fine,
    different,
    digits_net,
    distance,
    in_files,
    learned,
    make_solver,
    send_in_test,
    solve,
)

MOMENTUM = 'momentum: 0.9 weight_decay: 0.01 lr_policy: "inv" gamma: 0.1 power: 0.75 random_seed: 7 '
PHOTO_NET = """
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { crop_size: 8 mirror: true scale: 0.01 mean_value: 120
    random_resize_param { min_size: 9 max_size: 14 } }
  data_param { source: "%s" backend: LMDB batch_size: 5 shuffle: true } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Makes an LMDB of 22 JPEG files; returns a net that reads and augments them."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(22):
        folder = root / "images" / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_pixels(number, 14, 18)).save(folder / f"{number}.jpg")
    convert_imageset(root / "images", None, root / "lmdb", Output(encoded=True))
    return PHOTO_NET % (root / "lmdb")


@pytest.mark.parametrize(
    "text",
    [
        MOMENTUM + "momentum_correction: true warmup_iter: 14 warmup_start_lr: 0.001 average_loss: 5 iter_size: 2",
        MOMENTUM + 'type: "Nesterov" clip_gradients: 0.5 regularization_type: "L1"',
        'type: "Adam" momentum: 0.9',
        'type: "Adam" momentum: 0.9 weight_decay: 0.1 decoupled_weight_decay: true',
        MOMENTUM + 'local_lr_auto: true local_gw_ratio: 0.02 larc_policy: "clip"',
        'type: "AdaDelta" momentum: 0.95 delta: 1e-6 base_lr: 1',
        MOMENTUM + "ema: 0.6",
        'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 plateau_winsize: 3 average_loss: 3 momentum: 0.9',
        'lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 plateau_winsize: 3 warmup_iter: 4 momentum: 0.9',
    ],
    ids=[
        "corrected momentum",
        "nesterov",
        "adam",
        "adamw",
        "larc",
        "adadelta",
        "ema",
        "plateau",
        "plateau after warm-up",
    ],
)
def test_the_same_bits(photos, tmp_path, text):
    solve(text, photos, tmp_path)
    without = in_files(tmp_path, 20)
    whole = solve(text + " snapshot: 9", photos, tmp_path)
    assert different(without, in_files(tmp_path, 20)) == [], "a snapshot changed the run"
    resumed = solve(text, photos, tmp_path, restore=tmp_path / "net_iter_9.solverstate")
    assert different(without, in_files(tmp_path, 20)) == []
    assert different(learned(whole), learned(resumed)) == []
    assert resumed.state.recent_loss == whole.state.recent_loss
    assert resumed.state.last_rate == whole.state.last_rate


def test_what_is_too_large_for_a_message_is_hdf5(photos, tmp_path, monkeypatch, caplog):
    pytest.importorskip("h5py")
    solve(MOMENTUM, photos, tmp_path)
    whole = in_files(tmp_path, 20)
    monkeypatch.setattr("engine.weights.protobuf.PROTOBUF_LIMIT", 5_000)
    caplog.set_level("INFO", "engine")
    solver = solve(MOMENTUM + "max_iter: 9", photos, tmp_path)
    assert [path.suffix for path in solver.snapshots.names(solver.iteration)] == [".h5", ".h5"]
    assert "a caffemodel and a solverstate of this net is more than a protobuf message can hold (2 GB)" in caplog.text
    assert f"Snapshotting solver state to HDF5 file {tmp_path}/net_iter_9.solverstate.h5" in caplog.text
    monkeypatch.undo()
    resumed = solve(MOMENTUM, photos, tmp_path, restore=tmp_path / "net_iter_9.solverstate.h5")
    assert different(whole, in_files(tmp_path, 20)) == [] and resumed.iteration == 20


def test_weights_that_moved_with_their_state(photos, tmp_path):
    """A state names its weights by path, and those beside it count if the path is gone."""
    solve("max_iter: 3", photos, tmp_path)
    (moved := tmp_path / "moved").mkdir()
    for name in ("net_iter_3.caffemodel", "net_iter_3.solverstate"):
        (tmp_path / name).rename(moved / name)
    solver = make_solver("", photos)
    solver.restore(str(moved / "net_iter_3.solverstate"))
    assert (solver.iteration, solver.state.samples_seen) == (3, 15)
    (moved / "net_iter_3.caffemodel").unlink()
    with pytest.raises(WeightsError, match=r"net_iter_3\.solverstate: neither its weights '.*' nor '.*' exist"):
        solver.restore(str(moved / "net_iter_3.solverstate"))
    (moved / "net_iter_3.solverstate").rename(back := tmp_path / "net_iter_3.solverstate")
    with pytest.raises(WeightsError, match=r"net_iter_3\.solverstate: its weights '[^']*' do not exist"):
        solver.restore(str(back))


def test_a_run_that_goes_on_from_another_s_snapshot_writes_its_own_last_one(photos, tmp_path):
    """It does so even if the script has restored its own last snapshot before."""
    (other := tmp_path / "other").mkdir()
    text = "max_iter: 6 snapshot: 3 random_seed: 7 "
    solve(text, photos, tmp_path)
    solve(text + "base_lr: 0.05", photos, other)
    solver = make_solver(text.replace("snapshot: 3", ""), photos, tmp_path)
    solver.restore(str(tmp_path / "net_iter_6.solverstate"))
    solver.restore(str(other / "net_iter_3.solverstate"))
    assert solver.solve()
    assert different(in_files(tmp_path, 6), learned(solver)) == []
    solver.close()


def test_states_of_other_runs_are_refused(photos, tmp_path):
    solve("max_iter: 3 random_seed: 5", photos, tmp_path)
    state = str(tmp_path / "net_iter_3.solverstate")
    with pytest.raises(WeightsError, match="was trained with random_seed 5"):
        make_solver("", photos).restore(state)
    with pytest.raises(
        WeightsError,
        match="8 history blobs, expected 16 for this net and solver type; a state is continued with the type that "
        "wrote it, --weights begins anew",
    ):
        make_solver('type: "Adam" random_seed: 5', photos).restore(state)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "was trained with random_seed 5"),
        ('type: "Adam" random_seed: 5', "8 history blobs, expected 16"),
        ("random_seed: 5 iter_size: 2 max_epoch: 4", "was trained in global batches of 5"),
    ],
)
def test_a_state_that_is_refused_changes_nothing(photos, tmp_path, text, why):
    """Neither weights and history nor the list of kept snapshots change: the solver trains as if restore() had not been
    called."""
    solve("max_iter: 3 random_seed: 5 momentum: 0.9", photos, tmp_path)
    solver = make_solver(f"{text} snapshot_keep: 1", photos, tmp_path)
    before = learned(solver)
    with pytest.raises(WeightsError, match=why):
        solver.restore(str(tmp_path / "net_iter_3.solverstate"))
    assert different(before, learned(solver)) == []
    assert solver.iteration == 0 and solver.snapshots.kept.iterations == []


def test_weights_that_lack_a_layer_are_refused(photos, tmp_path):
    """Without them, the layer would go on from its initial values."""
    solve("max_iter: 3", photos, tmp_path)
    solver = make_solver("", photos.replace('name: "ip"', 'name: "fc"'), tmp_path)
    before = learned(solver)
    with pytest.raises(WeightsError, match=r"net_iter_3\.caffemodel: it lacks the layers fc of the net"):
        solver.restore(str(tmp_path / "net_iter_3.solverstate"))
    assert different(before, learned(solver)) == []


RANKS = """
from engine.comm.world import world
from tests.solver.harness import *
solve({text!r}, digits_net({batch}), {folder!r}, restore={restore!r}, world=world())
world().close()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_with_the_same_samples(tmp_path, before, after):
    """The data, dropout and augmentation are those of the 16 samples of an iteration, whichever rank takes them."""
    (whole := tmp_path / "whole").mkdir()
    text, restore = MOMENTUM + "average_loss: 15", ""
    solve(text, digits_net(16), whole)
    for ranks, until in ((before, 10), (after, 20)):
        run = f"{text} max_iter: {until}"
        program = RANKS.format(text=run, batch=16 // ranks, folder=str(tmp_path), restore=restore)
        done = run_ranks(ranks, program)
        assert done.returncode == 0, done.stderr
        restore = str(tmp_path / "net_iter_10.solverstate")
    assert read_solverstate(restore).samples_seen == 160
    assert distance(in_files(tmp_path, 20), in_files(whole, 20)) < 1e-5
    losses = [read_solverstate(folder / "net_iter_20.solverstate").recent_loss for folder in (tmp_path, whole)]
    # The window of losses goes back to before the break, and covers all ranks.
    np.testing.assert_allclose(*losses, rtol=1e-5)


SOLVER = """
net: "{folder}/train.prototxt" {momentum} base_lr: 0.01 display: 1 max_iter: {until} iter_size: 2
snapshot_prefix: "{folder}/net"
"""


def engine_train(folder, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "engine", "train", "--solver", str(folder / "solver.prototxt"), *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=REPO, env=environ, stderr=subprocess.PIPE, text=True)


def test_sigterm_stops_between_two_steps_and_the_run_goes_on(photos, tmp_path):
    (tmp_path / "train.prototxt").write_text(photos)
    (tmp_path / "solver.prototxt").write_text(SOLVER.format(folder=tmp_path, momentum=MOMENTUM, until=10**6))
    process = engine_train(tmp_path)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "Iteration 5," in line:
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0, "".join(lines)
    assert any("Optimization stopped early." in line for line in lines) and "Continue with --resume auto" in lines[-1]
    last = int(re.search(r"Iteration (\d+), lr", next(line for line in reversed(lines) if ", lr" in line)).group(1))
    state = tmp_path / f"net_iter_{last + 1}.solverstate"
    assert read_solverstate(state).iteration == last + 1

    until = last + 11
    _, errors = engine_train(tmp_path, "--snapshot", str(state), "--set", f"max_iter={until}").communicate(timeout=60)
    assert "Optimization Done." in errors
    resumed = in_files(tmp_path, until)
    _, errors = engine_train(tmp_path, "--set", f"max_iter={until}").communicate(timeout=60)
    assert "Optimization Done." in errors
    assert different(resumed, in_files(tmp_path, until)) == []


@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_tests_go_on_where_those_before_the_snapshot_ended(tmp_path, format):
    """Before the snapshot come 2 tests of 3 batches of 47 samples, so the position is within an epoch."""
    if format == "HDF5":
        pytest.importorskip("h5py")
    text = (
        f"max_iter: 8 test_iter: 3 test_interval: 2 snapshot: 4 snapshot_format: {format} snapshot_after_train: false"
    )

    whole, rest = Losses(), Losses()
    solver = make_solver(text, digits_net(), tmp_path, observers=[whole])
    assert solver.solve()
    solver.close()
    (state,) = tmp_path.glob("*_iter_4.solverstate*")
    assert read_solverstate(state).test_samples == [2 * 3 * 47]
    solver = make_solver(text, digits_net(), observers=[rest])
    solver.restore(str(state))
    assert solver.solve()
    solver.close()
    assert rest.losses == {iteration: loss for iteration, loss in whole.losses.items() if iteration >= 4}


@pytest.mark.parametrize("iteration", [0, 4, 8])
def test_a_signal_breaks_off_a_test_which_is_made_again(tmp_path, iteration, capfd):
    """This includes the test before the first iteration and the one after the last."""
    set_up()
    text = f"max_iter: 8 test_iter: 3 test_interval: 2 {MOMENTUM}"
    whole, first, rest = Losses(), Losses(), Losses()
    solver = make_solver(text, digits_net(), observers=[whole])
    assert solver.solve()
    weights = learned(solver)
    solver.close()
    solver = make_solver(text, digits_net(), tmp_path, observers=[first])
    batches = send_in_test(solver, iteration, signal.SIGTERM)
    assert not solver.solve()
    solver.close()
    assert len(batches) == 3 * iteration // 2 + 2
    said = capfd.readouterr().err
    then = ", then a snapshot" if iteration < 8 else ""
    assert f"SIGTERM: breaking off the test{then}; Ctrl-C ends it at once\n" in said
    assert "Test interrupted.\n" in said and said.endswith("Optimization stopped early.\n"), said
    state = tmp_path / f"net_iter_{iteration}.solverstate"
    assert read_solverstate(state).test_samples == [iteration // 2 * 3 * 47]
    solver = make_solver(text, digits_net(), observers=[rest])
    solver.restore(str(state))
    assert solver.solve()
    assert different(weights, learned(solver)) == []
    solver.close()
    assert first.losses == {at: loss for at, loss in whole.losses.items() if at < iteration}
    assert rest.losses == {at: loss for at, loss in whole.losses.items() if at >= iteration}


def test_of_two_test_nets_observers_see_both_or_none(tmp_path, capfd):
    """The lines of the first test net are logged at once. It is tested again when the run goes on and the second can be
    tested."""

    class Tests(Observer):
        def test(self, record) -> None:
            seen.append((record.iteration, record.index))

    def stop(net, size, keys) -> None:
        if solver.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    set_up()
    text = "max_iter: 4 test_interval: 2 test_iter: 1 test_iter: 3 test_state {} test_state {}"
    seen: list[tuple[int, int]] = []
    solver = make_solver(text, digits_net(), tmp_path, observers=[Tests()])
    solver.test_nets.evaluators[1].on_forward = stop
    assert not solver.solve()
    solver.close()
    assert seen == [(0, 0), (0, 1)]
    words = re.findall(r"Testing net \(#\d\)|loss = |Test interrupted", capfd.readouterr().err)
    both = ["Testing net (#0)", "loss = ", "Testing net (#1)", "loss = "]
    assert words == [*both, *both[:3], "Test interrupted"]
    (table,) = tmp_path.glob("*.csv")
    assert ",0," in table.read_text() and ",2," not in table.read_text()


def test_a_signal_while_the_run_ends_does_not_promise_another_iteration(tmp_path, capfd):
    """The signal comes while the last snapshot is written."""

    class Saved(Observer):
        def saved(self, iteration, path) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            while solver.signals.on_stop:  # waits until another thread has told of the signal
                time.sleep(0.01)

    set_up()
    solver = make_solver("max_iter: 2", digits_net(), tmp_path, observers=[Saved()])
    assert solver.solve()
    solver.close()
    said = capfd.readouterr().err
    assert "SIGTERM: the run is ending; Ctrl-C ends it at once\n" in said and "Optimization Done." in said, said


@pytest.mark.mpi
def test_a_signal_to_one_rank_breaks_off_the_test_of_all(tmp_path):
    log = all_fine(
        2,
        f"""
import signal
from engine.comm.world import world
from engine.report.log import set_up
from tests.solver.harness import *
set_up(world().rank)
tests = Losses()
text = "max_iter: 8 test_iter: 6 test_interval: 2"
solver = make_solver(text, digits_net(), {str(tmp_path)!r}, world(), observers=[tests])
if world().rank == 1:
    send_in_test(solver, 4, signal.SIGTERM)
assert not solver.solve() and solver.iteration == 4 and list(tests.losses) == [0, 2]
assert read_solverstate({str(tmp_path / "net_iter_4.solverstate")!r}).test_samples == [2 * 6 * 47]
solver.close()
world().close()
print("fine", flush=True)
""",
    )
    assert log.count("Test interrupted.") == 1


def test_a_state_with_impossible_positions_is_refused(tmp_path):
    write_solverstate(tmp_path / "x.solverstate", SolverState(test_samples=[-1]))
    with pytest.raises(WeightsError, match=r"x.solverstate: test_samples \[-1\], expected whole numbers of 0 or more"):
        read_solverstate(tmp_path / "x.solverstate")


def test_a_signal_does_not_break_off_the_last_snapshot(tmp_path, monkeypatch):
    write = weights.write_caffemodel

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        return write(*arguments)

    monkeypatch.setattr(weights, "write_caffemodel", interrupted)
    solve("max_iter: 3", digits_net(), tmp_path)
    assert (tmp_path / "net_iter_3.solverstate").exists() and (tmp_path / "net_iter_3.caffemodel").exists()


@pytest.mark.mpi
def test_a_net_in_which_nothing_learns_ends_as_others_do(tmp_path):
    """Such a net may have BatchNorm's statistics only. Servers must not wait for a bucket, for there is none."""
    begin = time.monotonic()
    frozen = re.sub(r"param \{ lr_mult: [12]( decay_mult: 0)? \}", "", digits_net(8))
    frozen = re.sub('(type: "(Convolution|InnerProduct)")', r"\1 param { lr_mult: 0 } param { lr_mult: 0 }", frozen)
    all_fine(
        2,
        f"""
from engine.comm.world import world
from tests.solver.harness import *
solver = make_solver("max_iter: 3", {frozen!r}, world=world())
assert solver.solve() and not solver.optimizer.buckets
solver.close()
world().close()
print("fine", flush=True)
""",
    )
    assert time.monotonic() - begin < 50


@pytest.mark.parametrize("prefix", ["", "other"])
def test_a_snapshot_from_after_the_end_is_told_and_changes_nothing(tmp_path, caplog, prefix):
    solve("max_iter: 6 snapshot_after_train: true", digits_net(), tmp_path)
    text = f'max_iter: 5 test_interval: 5 test_iter: 1 snapshot_prefix: "{tmp_path}/{prefix or "net"}"'
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    later = make_solver(text, digits_net(), tmp_path)
    later.restore(str(tmp_path / "net_iter_6.solverstate"))
    assert later.solve() and later.iteration == 6
    later.close()
    words = "Nothing to train: the snapshot is of iteration 6, and max_iter is 5; give a larger max_iter to go on"
    assert words in caplog.messages
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
