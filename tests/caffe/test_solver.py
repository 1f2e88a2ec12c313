"""caffe.SGDSolver and the other solvers train as engine train does, while a script reads and writes values between
steps."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import engine.caffe as caffe
from engine.caffe import mode
from engine.errors import ConfigError, ConfigErrors, EngineError, NumericalError
from engine.solver.update import solver_types
from engine.weights import read_caffemodel, read_solverstate
from tests.caffe.nets import NORMED
from tests.layers.harness import needs_bf16
from tests.mpi import REPO, run_ranks
from tests.shared import SHARED, needs_shared
from tests.solver.harness import all_fine, digits_net, make_solver
from tests.solver.test_lock import holder
from tests.solver.test_model_parallel import divided

INPUT_NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 5 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
PLAIN_SGD = 'base_lr: 0.5 lr_policy: "fixed" max_iter: 100'


def write(folder, text, net, name="solver.prototxt"):
    path = folder / name
    path.write_text(f'{text} snapshot_prefix: "{folder}/x" net_param {{ {net} }}')
    return str(path)


def with_input(solver):
    rng = np.random.default_rng(5)
    solver.net.blobs["data"].data[...] = rng.normal(size=(8, 5))
    solver.net.blobs["label"].data[...] = rng.integers(0, 3, 8)
    return solver


def test_the_same_training_as_without_python(tmp_path):
    text = 'base_lr: 0.05 momentum: 0.9 weight_decay: 0.01 lr_policy: "fixed" max_iter: 6 test_iter: 4 test_interval: 3'
    reference = make_solver(text, digits_net())
    reference.solve()
    solver = caffe.SGDSolver(write(tmp_path, text, digits_net()))
    held = solver.net.params["conv"][0].data
    before = held.copy()
    solver.step(2)
    assert solver.iter == 2
    assert (held != before).any()
    solver.step(4)
    for layer, blobs in reference.net.weights_by_layer().items():
        for mine, blob in zip(solver.net.params[layer], blobs):
            np.testing.assert_allclose(mine.data, blob, atol=1e-5)
    images = solver.test_nets[0].blobs["data"].data.copy()
    scores = solver.test_nets[0].forward()
    assert scores["accuracy"].shape == ()
    assert (solver.test_nets[0].blobs["data"].data != images).any()
    np.testing.assert_array_equal(solver.test_nets[0].params["conv"][0].data, held)
    assert solver.net.blobs["conv"].diff.any()
    assert solver.param.max_iter == 6


def test_a_script_that_steps_need_not_say_how_often(tmp_path):
    text = 'base_lr: 0.5 lr_policy: "fixed" display: 1 snapshot_after_train: false'
    solver = with_input(caffe.SGDSolver(write(tmp_path, text, INPUT_NET)))
    before = solver.net.params["ip"][0].data.copy()
    solver.step(3)
    assert solver.iter == 3 and (solver.net.params["ip"][0].data != before).any()
    solver.solve()
    assert solver.iter == 3


@pytest.mark.parametrize(
    "schedule",
    [
        'lr_policy: "poly" power: 1',
        'lr_policy: "fixed" momentum: 0.5 momentum_policy: "poly"',
        'lr_policy: "fixed" weight_decay_policy: "poly" max_weight_decay: 0.1',
        'lr_policy: "fixed" weight_decay: 0.1 weight_decay_schedule { policy: "cosine" }',
    ],
)
def test_a_schedule_over_the_run_needs_its_length(schedule, tmp_path):
    with pytest.raises(ConfigError, match="max_iter is missing"):
        caffe.SGDSolver(write(tmp_path, f"base_lr: 0.5 {schedule}", INPUT_NET))


@pytest.mark.parametrize(("first", "second", "rate"), [("", "lr_mult: 3", 1.5), ("lr_mult: 2", "", 1), ("", "", 0.5)])
def test_the_rate_that_one_of_two_layers_gives_their_weights(first, second, rate, tmp_path):
    """As in Caffe, either layer may give the rate. The gradient is the sum of both layers'."""
    text = INPUT_NET.replace("inner_product_param", f'param {{ name: "w" {first} }} inner_product_param')
    text += f"""layer {{ name: "again" type: "InnerProduct" bottom: "data" top: "again" param {{ name: "w" {second} }}
      inner_product_param {{ num_output: 3 bias_term: false }} }}
      layer {{ name: "more" type: "SoftmaxWithLoss" bottom: "again" bottom: "label" top: "more" }}"""
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, text)))
    weights = solver.net.params["ip"][0]
    before = weights.data.copy()
    solver.net.clear_param_diffs()
    solver.net.forward()
    solver.net.backward()
    gradient = weights.diff.copy()
    assert np.abs(gradient).max() > 0.1
    solver.step(1)
    np.testing.assert_allclose(weights.data, before - rate * gradient, atol=1e-6)


def test_what_python_writes_is_trained_on(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    weights = solver.net.params["ip"][0]
    for _ in range(3):
        weights.data[...] = 0
        solver.net.clear_param_diffs()
        solver.net.forward()
        solver.net.backward()
        expected = -0.5 * weights.diff
        assert expected.any()
        solver.step(1)
        np.testing.assert_allclose(weights.data, expected, atol=1e-6)
    solver.net.blobs["data"].data[...] = 0
    weights.data[...] = 1
    solver.step(1)
    np.testing.assert_array_equal(weights.data, 1)


def test_inputs_that_change_shape(tmp_path):
    """First half the batch, then all of it. Gradients are those of nets built for these shapes, and the momentum goes
    on."""
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD + " momentum: 0.9", INPUT_NET)))
    data, labels = (solver.net.blobs[name].data.copy() for name in ("data", "label"))
    held = solver.net.params["ip"][0].data
    history = 0
    for size in (8, 4, 8):
        text = INPUT_NET.replace("dim: 8", f"dim: {size}")
        net = caffe.SGDSolver(write(tmp_path, PLAIN_SGD, text, "other.prototxt")).net
        for ours, theirs in zip(net.params["ip"], solver.net.params["ip"]):
            ours.data[...] = theirs.data
        net.forward(data=data[:size], label=labels[:size])
        net.backward()
        history = 0.9 * history + 0.5 * net.params["ip"][0].diff
        expected = held - history
        solver.net.blobs["data"].reshape(size, 5)
        solver.net.blobs["label"].reshape(size)
        solver.net.blobs["data"].data[...] = data[:size]
        solver.net.blobs["label"].data[...] = labels[:size]
        solver.step(1)
        np.testing.assert_allclose(held, expected, atol=1e-6)


@needs_bf16
def test_bf16(tmp_path, monkeypatch):
    """Arrays are float32 also where the net computes in bf16, whose values have 8 bits of precision."""
    monkeypatch.setattr("engine.host._core.bf16_gain", lambda: 2.0)  # some processors compute bf16 slower than fp32
    text = 'base_lr: 0.05 lr_policy: "fixed" max_iter: 6 precision: '
    solvers = [caffe.SGDSolver(write(tmp_path, text + precision, digits_net())) for precision in ("FP32", "BF16")]
    for solver in solvers:
        solver.net.forward()
        solver.net.backward()
    fp32, bf16 = (solver.net.blobs["conv"] for solver in solvers)
    assert bf16.data.dtype == np.float32
    np.testing.assert_allclose(bf16.data, fp32.data, rtol=2e-2, atol=2e-2)
    np.testing.assert_array_equal(bf16.data.view(np.uint32) & 0xFFFF, 0)
    assert bf16.diff.any()
    before = solvers[1].net.forward(end="conv")["conv"].copy()
    solvers[1].net.blobs["conv"].data[...] = 0
    assert not solvers[1].net.forward(start="relu", end="relu")["conv"].any()
    assert before.any()


MIXED = """force_backward: true
layer { name: "x" type: "Input" top: "x" top: "label"
  input_param { shape { dim: 2 dim: 8 } shape { dim: 2 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
layer { name: "power" type: "Power" bottom: "ip" top: "power" power_param { scale: 2 } }
layer { name: "a" type: "InnerProduct" bottom: "power" top: "a"
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
layer { name: "b" type: "InnerProduct" bottom: "power" top: "b"
  inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "loss" type: "EuclideanLoss" bottom: "sum" bottom: "label" top: "loss" }
"""


@needs_bf16
def test_parts_of_a_net_in_bf16_are_the_whole(tmp_path, monkeypatch):
    """The casts of a layer's bottoms run together with the layer."""
    monkeypatch.setattr("engine.host._core.bf16_gain", lambda: 2.0)  # some processors compute bf16 slower than fp32
    net = caffe.SGDSolver(write(tmp_path, PLAIN_SGD + " precision: BF16", MIXED)).net
    whole = [(net._layer_names[0], net._layer_names[-1])]

    def run(parts):
        for start, end in parts:
            net.forward(start=start, end=end)
        for start, end in reversed(parts):
            net.backward(start=end, end=start)
        return [net.blobs["loss"].data.copy(), net.blobs["power"].diff.copy(), net.blobs["x"].diff.copy()]

    net.blobs["label"].data[...] = 3
    found = {}
    for parts in (whole, [(name, name) for name in net._layer_names]):
        net.blobs["x"].data[...] = 1
        run(whole)
        net.blobs["x"].data[...] = 5
        found[len(parts)] = run(parts)
    for one, all_at_once in zip(*found.values()):
        assert one.any()
        np.testing.assert_array_equal(one, all_at_once)


PICTURES = """
import caffe

class Pictures(caffe.Layer):
    def setup(self, bottom, top):
        self.number = 0

    def reshape(self, bottom, top):
        top[0].reshape(1, 1, 1 + self.number % 3, 2)

    def forward(self, bottom, top):
        assert self.number < 99
        top[0].data[...] = self.number
        self.number += 1

    def backward(self, top, propagate_down, bottom):
        pass
"""
PICTURES_NET = """
layer { name: "data" type: "Python" top: "data"
  python_param { module: "pictures_of_many_sizes" layer: "Pictures" } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 1 kernel_size: 1 bias_term: false } }
layer { name: "loss" type: "Reduction" bottom: "conv" top: "loss" loss_weight: 1
  reduction_param { operation: MEAN } }
"""


def test_a_loss_that_is_not_finite_ends_a_net_of_pictures_of_many_sizes(tmp_path, monkeypatch):
    """No second forward is run to find the layer, since the data layer would go on to a picture of another size."""
    (tmp_path / "pictures_of_many_sizes.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(str(tmp_path))
    solver = caffe.SGDSolver(write(tmp_path, PLAIN_SGD, PICTURES_NET))
    solver.step(2)
    solver.net.params["conv"][0].data[...] = np.nan
    with pytest.raises(NumericalError, match=r"iteration 2: the loss is nan\. Lower base_lr"):
        solver.step(1)


@pytest.mark.parametrize("iter_size", [1, 2])
def test_pictures_of_many_sizes(iter_size, tmp_path, monkeypatch):
    """FCN trains so: its data layer in Python gives one picture at a time, each of its own size."""
    (tmp_path / "pictures_of_many_sizes.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = 'base_lr: 0.1 momentum: 0.5 lr_policy: "fixed" max_iter: 9 test_iter: 1 test_interval: 99'
    text += f" test_initialization: false iter_size: {iter_size}"
    solver = caffe.SGDSolver(write(tmp_path, text, PICTURES_NET))
    weights = solver.net.params["conv"][0].data
    expected = history = 0
    for step in range(4):
        solver.step(1)
        numbers = [step * iter_size + micro for micro in range(iter_size)]
        history = 0.5 * history + 0.1 * np.mean(numbers)  # the gradient of w is the picture's number
        expected -= history
        np.testing.assert_allclose(weights, np.full((1, 1, 1, 1), expected), rtol=1e-5)
        assert solver.net.blobs["data"].shape == (1, 1, 1 + numbers[-1] % 3, 2)
    solver.step(3)
    solver.snapshot()
    losses = [solver.test_nets[0].forward()["loss"].item() for _ in range(3)]
    np.testing.assert_allclose(losses, [0, weights.item(), 2 * weights.item()], rtol=1e-5)


ONES = """
import caffe


class Ones(caffe.Layer):
    def setup(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
        top[0].data[...] = 1

    def backward(self, top, propagate_down, bottom):
        pass
"""
ONES_LAYERS = """
layer { name: "ones" type: "Python" bottom: "conv" top: "ones" propagate_down: false
  python_param { module: "ones_of_many_sizes" layer: "Ones" } }
layer { name: "loss" type: "EuclideanLoss" bottom: "conv" bottom: "ones" top: "loss" }
"""


def test_targets_whose_size_is_known_in_forward_only(tmp_path, monkeypatch):
    """Faster R-CNN trains so: reshape() of AnchorTargetLayer does nothing, and the loss only fits when its forward has
    run."""
    (tmp_path / "pictures_of_many_sizes.py").write_text(PICTURES)
    (tmp_path / "ones_of_many_sizes.py").write_text(ONES)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = 'base_lr: 0.01 momentum: 0 lr_policy: "fixed" max_iter: 9'
    solver = caffe.SGDSolver(write(tmp_path, text, PICTURES_NET.partition('layer { name: "loss"')[0] + ONES_LAYERS))
    weights, loss = solver.net.params["conv"][0].data, solver.net.blobs["loss"].data
    expected = 0.0
    for number in range(5):
        solver.step(1)
        pixels = 2 * (1 + number % 3)
        assert solver.net.blobs["ones"].shape == solver.net.blobs["conv"].shape == (1, 1, pixels // 2, 2)
        np.testing.assert_allclose(loss, pixels * (expected * number - 1) ** 2 / 2, rtol=1e-5)
        expected -= 0.01 * pixels * (expected * number - 1) * number
        np.testing.assert_allclose(weights.item(), expected, rtol=1e-5)


def test_arrays_outlive_a_change_of_shapes(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    loss, gradient = solver.net.blobs["loss"].data, solver.net.params["ip"][0].diff
    for size in (8, 4, 8):
        solver.net.blobs["data"].reshape(size, 5)
        solver.net.blobs["label"].reshape(size)
        solver.net.blobs["data"].data[...] = 0.1 * size
        solver.step(1)
        assert loss == solver.net.blobs["loss"].data != 0
        np.testing.assert_array_equal(gradient, solver.net.params["ip"][0].diff)


def test_a_test_net_shows_its_own_last_run(tmp_path):
    net = INPUT_NET + 'layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }'
    text = PLAIN_SGD + " test_iter: 1 test_interval: 2 test_initialization: false"
    solver = with_input(caffe.SGDSolver(write(tmp_path, text, net)))
    test = solver.test_nets[0]
    before = test.forward(end="ip", data=np.ones((8, 5)), label=np.zeros(8))["ip"].copy()
    assert before.min() < 0
    solver.step(1)
    np.testing.assert_array_equal(test.blobs["ip"].data, before)
    solver.step(2)  # which runs a test
    assert test.blobs["ip"].data.min() >= 0


def test_the_seed_of_the_script_is_the_solver_s(tmp_path, monkeypatch):
    monkeypatch.setattr(mode, "_seed", None)

    def weights(text=""):
        return caffe.SGDSolver(write(tmp_path, f"{PLAIN_SGD} {text}", INPUT_NET)).net.params["ip"][0].data

    default = weights()
    caffe.set_random_seed(5)
    assert (weights() != default).any()
    np.testing.assert_array_equal(weights(), weights("random_seed: 5"))
    np.testing.assert_array_equal(weights("random_seed: 1"), default)


CORRECTED = 'base_lr: 0.5 lr_policy: "exp" gamma: 0.5 max_iter: 100 momentum: 0.9 momentum_correction: true'
BY_HAND = {
    "momentum": PLAIN_SGD + " momentum: 0.9",
    "momentum correction": CORRECTED,
    # The loss falls, so the rate must stay. It does only if each update has seen the loss.
    "plateau": 'base_lr: 2 lr_policy: "plateau" gamma: 0.01 plateau_winsize: 1 plateau_winsize: 2 max_iter: 99',
    # The rate is so large that the loss rises, so the rate falls at once.
    "rising": 'base_lr: 50 lr_policy: "plateau" gamma: 0.01 plateau_winsize: 1 plateau_winsize: 2 max_iter: 99',
}


@pytest.mark.parametrize("text", BY_HAND.values(), ids=BY_HAND)
def test_updates_by_hand(text, tmp_path):
    by_hand = with_input(caffe.SGDSolver(write(tmp_path, text, INPUT_NET)))
    stepped = with_input(caffe.SGDSolver(write(tmp_path, text, INPUT_NET)))
    for _ in range(6):
        by_hand.net.clear_param_diffs()
        by_hand.net.forward()
        by_hand.net.backward()
        by_hand.apply_update()
    stepped.step(6)
    assert (by_hand.iter, stepped.iter) == (6, 6)
    mine, its = by_hand._solver.state, stepped._solver.state
    assert mine.last_rate == its.last_rate
    assert (mine.plateau.current_step, mine.plateau.iter_last_event) == (
        its.plateau.current_step,
        its.plateau.iter_last_event,
    )
    np.testing.assert_allclose(by_hand.net.params["ip"][0].data, stepped.net.params["ip"][0].data, rtol=1e-5, atol=1e-6)


def train_by_hand(solver, updates):
    for _ in range(updates):
        solver.net.clear_param_diffs()
        for _ in range(max(1, solver.param.iter_size)):
            solver.net.forward()
            solver.net.backward()
        solver.apply_update()


def test_passes_by_hand_are_those_of_step(tmp_path):
    """Samples and random numbers such as dropout masks agree: from the start, in turns with step(), and after a
    restore."""
    text = 'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 8 random_seed: 3 iter_size: 2'
    path = write(tmp_path, text, digits_net())
    stepped, first, second = (caffe.SGDSolver(path) for _ in range(3))
    stepped.step(6)
    train_by_hand(first, 2)
    first.step(1)
    first.snapshot()
    train_by_hand(first, 3)
    second.restore(tmp_path / "x_iter_3.solverstate")
    train_by_hand(second, 3)
    for solver in (first, second):
        assert solver._solver.state.samples_seen == stepped._solver.state.samples_seen == 6 * 2 * 16
        for layer, blobs in stepped.net.params.items():
            for mine, its in zip(solver.net.params[layer], blobs):
                np.testing.assert_allclose(mine.data, its.data, rtol=1e-5, atol=1e-6)


def test_a_pass_by_hand_takes_a_batch(tmp_path):
    """No other pass takes that batch again. Passes of parts of the net share one batch."""
    path = write(tmp_path, 'base_lr: 0 lr_policy: "fixed" max_iter: 4', digits_net())
    solver, other = caffe.SGDSolver(path), caffe.SGDSolver(path)
    batches, seen = [], []
    for _ in range(6):
        other.net.forward()
        batches.append(other.net.blobs["data"].data.copy())

    def note():
        seen.append(solver.net.blobs["data"].data.copy())

    solver.add_callback(lambda: None, note)
    solver.step(2)
    solver.net.forward(end="tanh")
    solver.net.forward(start="drop")
    note()
    solver.solve()
    solver.net.forward()
    note()
    np.testing.assert_array_equal(seen, batches)
    assert solver._solver.state.samples_seen == 6 * 16


def test_updates_by_hand_are_averaged(tmp_path):
    """They enter the average as those of step() do, also when both take turns. Before the first update there is no
    average."""
    found = []
    for name, by_hand in (("a", 6), ("b", 0), ("c", 3)):
        (tmp_path / name).mkdir()
        solver = with_input(caffe.SGDSolver(write(tmp_path / name, PLAIN_SGD + " ema: 0.7", INPUT_NET)))
        solver.snapshot()
        for _ in range(by_hand):
            solver.net.clear_param_diffs()
            solver.net.forward()
            solver.net.backward()
            solver.apply_update()
        if by_hand < 6:
            solver.step(6 - by_hand)
        solver.snapshot()
        assert not (tmp_path / name / "x_iter_0_ema.caffemodel").exists()
        assert read_solverstate(tmp_path / name / "x_iter_0.solverstate").ema is None
        average, weights = (
            read_caffemodel(tmp_path / name / f"x_iter_6{kind}.caffemodel")["ip"] for kind in ("_ema", "")
        )
        assert np.abs(average[0] - weights[0]).max() > 0.01 and average[0].any()
        found.append(average[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5, atol=1e-6)


def test_a_script_s_plateau_lowers_the_rate(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, BY_HAND["rising"], INPUT_NET)))
    solver.step(6)
    assert solver._solver.state.plateau.current_step == 2
    assert solver._solver.state.last_rate == pytest.approx(50 * 0.01**2)


def test_a_script_changes_the_rate(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    param = solver.param
    param.base_lr = 0.25
    solver.param = param
    solver.step(1)
    assert solver._solver.state.last_rate == 0.25
    other = type(param)(base_lr=0.125)
    solver.param = other
    solver.step(1)
    assert (solver._solver.state.last_rate, solver.param.max_iter) == (0.125, 100)


def test_the_layers_of_a_step_call_nobody(tmp_path):
    solver = caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET))
    with pytest.raises(EngineError, match=r"before_forward\(\) is for nets that a script makes itself, .* --timeline"):
        solver.net.before_forward(print)


def test_callbacks(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    weights = solver.net.params["ip"][0]
    weights.data[...] = 0
    seen = []

    def start():
        seen.append(("start", solver.iter, weights.data.copy()))

    def gradients():
        weights.diff[...] = np.sign(weights.diff)
        seen.append(("gradients", solver.iter, weights.diff.copy()))

    solver.add_callback(start, gradients)
    solver.step(2)
    assert [(what, at) for what, at, _ in seen] == [("start", 0), ("gradients", 0), ("start", 1), ("gradients", 1)]
    np.testing.assert_allclose(seen[2][2], -0.5 * seen[1][2])  # the update used what the callback wrote
    np.testing.assert_allclose(weights.data, -0.5 * (seen[1][2] + seen[3][2]))


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_iteration_that_a_callback_breaks_off_leaves_no_trace(by_hand, tmp_path, monkeypatch):
    """Nor does an update by hand: averages, counts and schedules go on as if the iteration had not begun."""
    text = 'base_lr: 0.05 momentum: 0.9 momentum_correction: true lr_policy: "plateau" gamma: 0.5 average_loss: 4 '
    text += "plateau_winsize: 1 plateau_winsize: 2 iter_size: 2 max_iter: 9 ema: 0.5"
    broken, whole = (caffe.SGDSolver(write(tmp_path, text, NORMED)) for _ in range(2))
    for solver in (broken, whole):
        solver.step(2)
        if by_hand:
            solver.net.forward()
            solver.net.backward()

    def fail():
        raise ZeroDivisionError

    optimizer = broken._solver.optimizer
    with monkeypatch.context() as patch:
        patch.setattr(optimizer, "release" if by_hand else "finish", fail)
        with pytest.raises(ZeroDivisionError):
            broken.apply_update() if by_hand else broken.step(1)
    assert broken._solver.state == whole._solver.state and broken.iter == 2
    for solver in (broken, whole):
        solver.apply_update() if by_hand else solver.step(3)
    assert broken._solver.state == whole._solver.state
    for layer, blobs in whole.net.params.items():
        for mine, its in zip(broken.net.params[layer], blobs):
            np.testing.assert_array_equal(mine.data, its.data)


def test_an_iteration_that_is_done_when_it_is_interrupted_is_in_the_average(tmp_path, monkeypatch):
    text = PLAIN_SGD + " ema: 0.5"
    interrupted, whole = (with_input(caffe.SGDSolver(write(tmp_path, text, INPUT_NET))) for _ in range(2))
    interrupted.step(3)
    optimizer = interrupted._solver.optimizer
    finish = optimizer.finish

    def strike():
        os.kill(os.getpid(), signal.SIGINT)

    interrupted.add_callback(lambda: None, strike)
    with monkeypatch.context() as patch:
        # a second interrupt, which ends the call at once
        patch.setattr(optimizer, "finish", lambda: [strike(), finish()])
        with pytest.raises(KeyboardInterrupt):
            interrupted.step(10)
    assert interrupted.iter == 4
    whole.step(4)
    for solver in (interrupted, whole):
        solver._solver.average.catch_up()
    np.testing.assert_array_equal(interrupted._solver.average.weights, whole._solver.average.weights)


def test_snapshot_and_restore(tmp_path):
    text = 'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 6'
    path = write(tmp_path, text, digits_net())
    solver = caffe.get_solver(path)
    assert type(solver) is caffe.SGDSolver
    solver.step(3)
    solver.snapshot()
    solver.step(3)
    resumed = caffe.SGDSolver(path)
    resumed.restore(str(tmp_path / "x_iter_3.solverstate"))
    assert resumed.iter == 3
    resumed.step(3)
    np.testing.assert_allclose(resumed.net.params["conv"][0].data, solver.net.params["conv"][0].data, atol=1e-6)
    whole = caffe.SGDSolver(path)
    whole.solve()
    assert whole.iter == 6
    np.testing.assert_allclose(whole.net.params["conv"][0].data, solver.net.params["conv"][0].data, atol=1e-6)
    assert (tmp_path / "x_iter_6.caffemodel").exists()


@pytest.mark.parametrize("more", ["snapshot: 20", "snapshot_epoch: 1"])
def test_a_folder_for_snapshots_that_is_missing_is_told_at_once(more, tmp_path):
    text = INPUT_NET if more.startswith("snapshot:") else digits_net()
    path = Path(write(tmp_path, f"{PLAIN_SGD} {more}", text))
    path.write_text(path.read_text().replace(f"{tmp_path}/x", f"{tmp_path}/none/x"))
    words = (
        rf"solver\.prototxt.*no folder {tmp_path}/none; create it, or give another snapshot_prefix in the solver's file"
    )
    with pytest.raises(ConfigError, match=words):
        caffe.SGDSolver(path)
    (tmp_path / "none").mkdir()
    solver = caffe.SGDSolver(path)
    (tmp_path / "none").rmdir()
    with pytest.raises(ConfigError, match=words):
        solver.step(1)
    assert solver.iter == 0
    path.write_text(path.read_text().replace(more, ""))
    solver = with_input(caffe.SGDSolver(path)) if text == INPUT_NET else caffe.SGDSolver(path)
    solver.step(1)  # a step that takes no snapshot
    with pytest.raises(ConfigError, match=words):
        solver.solve()
    assert solver.iter == 1


def test_a_snapshot_prefix_of_another_process_is_told_at_the_first_step(tmp_path):
    other = holder(str(tmp_path / "x"))
    words = f"is in use by process {other.pid} on .* another in its solver's file"
    try:
        solver = with_input(caffe.SGDSolver(write(tmp_path, f"{PLAIN_SGD} snapshot: 20", INPUT_NET)))
        with pytest.raises(EngineError, match=words):
            solver.step(1)
        with pytest.raises(EngineError, match=words):
            solver.solve()
        assert solver.iter == 0
        rest = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
        rest.step(1)  # a step that takes no snapshot
        with pytest.raises(EngineError, match=words):
            rest.solve()
        assert rest.iter == 1
    finally:
        other.kill()
        other.wait()
    solver.step(1)
    assert solver.iter == 1 and (tmp_path / ".x.lock").read_text().split()[1] == str(os.getpid())
    del solver
    assert not (tmp_path / ".x.lock").exists()


def test_a_snapshot_prefix_is_kept_as_long_as_one_solver_has_it(tmp_path):
    path = write(tmp_path, f"{PLAIN_SGD} snapshot: 20", INPUT_NET)
    first, second = (with_input(caffe.SGDSolver(path)) for _ in range(2))
    first.step(1)
    second.step(1)
    del first
    assert (tmp_path / ".x.lock").exists()
    del second
    assert not (tmp_path / ".x.lock").exists()


@pytest.mark.parametrize("count", [2.5, "3", None, np.float32(2)])
def test_a_number_of_iterations_is_whole(count, tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    words = f"step() takes a whole number of iterations; got {count!r}"
    with pytest.raises(TypeError, match=rf"^{re.escape(words)}$"):
        solver.step(count)
    assert solver.iter == 0
    solver.step(np.int64(2))
    assert solver.iter == 2


def test_the_nets_of_a_solver_cannot_be_replaced(tmp_path):
    text = 'base_lr: 0.05 lr_policy: "fixed" max_iter: 6 test_iter: 4 test_interval: 3'
    solver = caffe.SGDSolver(write(tmp_path, text, digits_net()))
    net, nets = solver.net, solver.test_nets
    with pytest.raises(AttributeError, match=r"^solver\.net cannot be set: .*copy_from"):
        solver.net = nets[0]
    with pytest.raises(AttributeError, match=r"^solver\.test_nets cannot be set: "):
        solver.test_nets = [net]
    with pytest.raises(TypeError):
        solver.test_nets[0] = net
    assert solver.net is net and solver.test_nets == nets and len(nets) == 1


def test_those_who_watch_are_told_of_a_restore(tmp_path):
    text = 'base_lr: 0.05 lr_policy: "fixed" max_iter: 20 display: 2'
    solver = caffe.SGDSolver(write(tmp_path, text, digits_net()))
    solver.step(4)
    solver.snapshot()
    solver.step(6)
    solver.restore(str(tmp_path / "x_iter_4.solverstate"))
    solver.step(4)
    solver.snapshot()
    rows = [row.split(",") for row in (tmp_path / "x_curve.csv").read_text().splitlines()]
    assert [int(row[2]) for row in rows if row[1] == "train loss"] == [0, 2, 4, 6]


@pytest.mark.parametrize("more", ["", "average_loss: 4 ema: 0.5"])
def test_restoring_what_the_same_solver_saved(more, tmp_path):
    """The iterations are repeated, with the same bits."""
    text = f'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 6 {more}'
    solver = caffe.SGDSolver(write(tmp_path, text, digits_net()))
    solver.step(3)
    solver.snapshot()
    solver.step(3)
    first, window = solver.net.params["conv"][0].data.copy(), list(solver._solver.state.recent_loss)
    solver.restore(str(tmp_path / "x_iter_3.solverstate"))
    solver.step(3)
    np.testing.assert_array_equal(solver.net.params["conv"][0].data, first)
    assert list(solver._solver.state.recent_loss) == window


@pytest.mark.parametrize("kind", solver_types())
def test_every_type(kind, tmp_path):
    momentum = "" if kind in ("AdaGrad", "RMSProp") else "momentum: 0.9"
    path = write(tmp_path, f'type: "{kind}" base_lr: 0.1 lr_policy: "fixed" max_iter: 30 {momentum}', INPUT_NET)
    solver = with_input(caffe.get_solver(path))
    assert type(solver) is getattr(caffe, f"{kind}Solver")
    solver.step(1)
    first = float(solver.net.blobs["loss"].data)
    solver.step(29)
    assert float(solver.net.blobs["loss"].data) < first


def test_the_solver_s_weights_are_loaded(tmp_path):
    first = caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET))
    path = str(tmp_path / "first.caffemodel")
    first.net.params["ip"][0].data[...] = 7
    first.net.save(path)
    second = caffe.get_solver(write(tmp_path, f'{PLAIN_SGD} weights: "{path}"', INPUT_NET))
    assert (second.net.params["ip"][0].data == 7).all()


def test_the_net_of_this_rank(tmp_path):
    (tmp_path / "net_0_of_1.prototxt").write_text(INPUT_NET)
    path = tmp_path / "solver.prototxt"
    path.write_text(f'{PLAIN_SGD} snapshot_prefix: "{tmp_path}/x" net: "net_%#_of_%*.prototxt"')
    with_input(caffe.SGDSolver(path)).step(1)


def test_steps_do_without_the_ranks_that_elastic_wants(tmp_path):
    text = f"{PLAIN_SGD} comm_param {{ elastic {{ min_ranks: 2 }} }}"
    solver = with_input(caffe.get_solver(write(tmp_path, text, INPUT_NET)))
    solver.step(1)
    assert solver.iter == 1
    with pytest.raises(ConfigError, match="min_ranks: expected as many ranks as are started, 1, at most, got 2"):
        solver.solve()


def test_a_type_that_does_not_exist():
    assert not hasattr(caffe, "LionSolver") and not hasattr(caffe, "lions")


ENDS = """
import sys, engine.caffe as caffe
solver = caffe.SGDSolver(sys.argv[1])
solver.step(1)
solver.test_nets[0].forward()
net = caffe.Net(sys.argv[2], caffe.TRAIN)
net.forward()
print("done")
"""


def test_scripts_end_well(tmp_path):
    """Threads that decode and communicate must end before the interpreter does."""
    text = 'base_lr: 0.05 lr_policy: "fixed" max_iter: 6 test_iter: 4 test_interval: 3'
    command = [sys.executable, "-c", ENDS, write(tmp_path, text, digits_net()), _net_file(tmp_path)]
    for _ in range(3):
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.fixture
def uncollected():
    """Switches the garbage collector off, so that cycles of references are not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("more", "norm"),
    [
        ("", ""),
        ("test_iter: 4 test_interval: 2", ""),
        ('type: "Adam" ema: 0.9 iter_size: 2 clip_gradients: 9', "sync: true"),
    ],
    ids=["", "with a test net", "with an average"],
)
@pytest.mark.parametrize("solves", [False, True], ids=["step", "solve"])
def test_a_dropped_solver_is_freed_at_once(more, norm, solves, tmp_path, uncollected):
    """Its nets, history and threads are freed with it. A search over rates makes one solver after the other."""
    net = digits_net()
    if norm:  # a norm whose program calls Python for sums over ranks
        net = net.replace('type: "ReLU"', f'type: "BatchNorm" batch_norm_param {{ {norm} }}', 1)
    threads = threading.active_count()
    text = f'base_lr: 0.05 lr_policy: "fixed" max_iter: 4 snapshot: 3 {more}'
    solver = caffe.get_solver(write(tmp_path, text, net))
    solver.add_callback(lambda: None, lambda: None)
    solver.step(1)
    if solves:
        solver.solve()
    solver.net.forward()
    solver.net.backward()
    assert all(net.forward() for net in solver.test_nets)
    inner = solver._solver
    parts = [solver, inner, inner.optimizer, inner.feeder, *(net._net.net for net in (solver.net, *solver.test_nets))]
    dropped = [weakref.ref(part) for part in parts]
    del inner, parts
    assert threading.active_count() > threads
    del solver
    assert [part() for part in dropped] == [None] * len(dropped)
    assert threading.active_count() == threads


def test_a_net_outlives_its_solver(tmp_path, uncollected):
    """The net goes on with the batches that its solver would have read. When it is dropped, too, nothing of it is
    left."""
    threads = threading.active_count()
    text = 'base_lr: 0.05 lr_policy: "fixed" random_seed: 3 test_iter: 1 test_interval: 2'
    solvers = [caffe.SGDSolver(write(tmp_path, text, digits_net())) for _ in range(2)]
    for each in solvers:
        each.step(3)
    nets, tests = zip(*((each.net, each.test_nets[0]) for each in solvers))
    dropped = weakref.ref(nets[0]._net.net)
    del each
    del solvers[0]
    for _ in range(2):
        for first, second in (nets, tests):
            assert first.forward().keys() == second.forward().keys()
            for name, blob in first.blobs.items():
                np.testing.assert_array_equal(blob.data, second.blobs[name].data)
        for net in nets:
            net.clear_param_diffs()
            net.backward()
        np.testing.assert_array_equal(*(net.params["ip1"][0].diff for net in nets))
    del first, second, blob, net, nets, tests, solvers
    assert dropped() is None
    assert threading.active_count() == threads


def test_a_net_that_outlives_its_solver_changes_its_shapes(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    solver.step(2)
    net, weights = solver.net, solver.net.params["ip"][0].data
    before = weights.copy()
    del solver
    for name, shape in {"data": (3, 5), "label": (3,)}.items():
        net.blobs[name].reshape(*shape)
    net.blobs["data"].data[...], net.blobs["label"].data[...] = 1, 2
    assert np.isfinite(net.forward()["loss"])
    net.backward()
    assert tuple(net.blobs["ip"].shape) == (3, 3)
    np.testing.assert_array_equal(weights, before)


def test_a_dropped_net_leaves_no_threads(tmp_path, uncollected):
    threads = threading.active_count()
    net = caffe.Net(_net_file(tmp_path), caffe.TRAIN)
    net.forward()
    assert threading.active_count() > threads
    del net
    assert threading.active_count() == threads


FAILING = """
import caffe

class Failing(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data

    def backward(self, top, propagate_down, bottom):
        raise ZeroDivisionError
"""


def test_a_failed_backward_leaves_nobody_waiting(tmp_path, monkeypatch):
    (tmp_path / "failing_in_backward.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    failing = """layer { name: "failing" type: "Python" bottom: "ip" top: "failing"
                   python_param { module: "failing_in_backward" layer: "Failing" } }"""
    net = INPUT_NET.replace('layer { name: "loss"', failing + 'layer { name: "loss"').replace(
        '"SoftmaxWithLoss" bottom: "ip"', '"SoftmaxWithLoss" bottom: "failing"'
    )
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, net)))
    before = solver.net.params["ip"][0].data.copy()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            solver.step(1)
    assert solver.iter == 0 and (solver.net.params["ip"][0].data == before).all()


def test_unknown_types_and_settings(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown solver type 'Adma'.*Adam"):
        caffe.get_solver(write(tmp_path, 'type: "Adma" base_lr: 1 lr_policy: "fixed" max_iter: 1', INPUT_NET))
    with pytest.raises((ConfigError, ConfigErrors), match="momentum"):  # the class decides the type, not the file
        caffe.AdaGradSolver(write(tmp_path, PLAIN_SGD + " momentum: 0.9", INPUT_NET))


@needs_shared("golden/solvers")
@pytest.mark.parametrize("case", ["sgd", "adam", "sgd_iter_size"])
def test_caffe_s_own_figures(case, tmp_path):
    arrays = dict(np.load(SHARED / f"golden/solvers/{case}.npz"))
    solver = caffe.get_solver(write(tmp_path, str(arrays["solver"]), str(arrays["net"])))
    for blob in ("x", "l"):
        solver.net.blobs[blob].data[...] = arrays[blob]
    for layer in ("conv", "ip"):
        for i in (0, 1):
            solver.net.params[layer][i].data[...] = arrays[f"before_{layer}_{i}"]
    solver.step(10)
    for layer in ("conv", "ip"):
        for i in (0, 1):
            expected = arrays[f"after10_{layer}_{i}"]
            np.testing.assert_allclose(solver.net.params[layer][i].data, expected, rtol=1e-5, atol=2e-6)


def test_arrays_for_a_memory_layer(tmp_path):
    memory = """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                  memory_data_param { batch_size: 4 channels: 1 height: 1 width: 5 } }"""
    net = memory + INPUT_NET[INPUT_NET.index('layer { name: "ip"') :]
    solver = caffe.SGDSolver(write(tmp_path, PLAIN_SGD, net))
    rng = np.random.default_rng(5)
    data, labels = rng.normal(size=(8, 1, 1, 5)).astype(np.float32), rng.integers(0, 3, 8)
    for begin in (0, 4):
        solver.net.set_input_arrays(data[begin:], labels[begin:])
        solver.step(1)
        np.testing.assert_array_equal(solver.net.blobs["data"].data, data[begin : begin + 4])
    first = float(solver.net.blobs["loss"].data)
    solver.step(50)
    assert float(solver.net.blobs["loss"].data) < first


def test_arrays_for_a_memory_layer_begin_with_their_first_item(tmp_path):
    """This must not depend on how many samples were read before, also in a test net."""
    memory = """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                  memory_data_param { batch_size: 4 channels: 1 height: 1 width: 5 } }"""
    net = memory + INPUT_NET[INPUT_NET.index('layer { name: "ip"') :]
    solver = caffe.SGDSolver(write(tmp_path, PLAIN_SGD + " test_iter: 1 test_interval: 1", net))
    data = np.arange(12, dtype=np.float32).reshape(12, 1, 1, 1).repeat(5, 3)
    for size in (10, 12):
        for each in (solver.net, solver.test_nets[0]):
            each.set_input_arrays(data[:size], np.zeros(size))
        solver.step(1)
        for each in (solver.net, solver.test_nets[0]):
            assert each.blobs["data"].data[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_what_things_say_of_themselves(tmp_path):
    solver = with_input(caffe.SGDSolver(write(tmp_path, PLAIN_SGD, INPUT_NET)))
    solver.step(2)
    path = tmp_path / "solver.prototxt"
    assert repr(solver) == f"<SGDSolver of {path}: iteration 2 of 100, net '{solver.net.name}'>"
    assert repr(solver.net) == f"<Net '{solver.net.name}', TRAIN: 4 layers, 18 parameters>"
    assert repr(solver.net.blobs["data"]) == "<blob 'data': 8 x 5>"
    assert repr(solver.net.params["ip"][0]) == "<parameter 0 of layer 'ip': 3 x 5>"
    assert repr(solver.net.layer_dict["ip"]) == "<layer 'ip' (InnerProduct), 2 blobs>"


@pytest.mark.mpi
def test_ranks_share_the_arrays_of_a_memory_layer(tmp_path):
    memory = """layer { name: "data" type: "MemoryData" top: "data" top: "label"
                  memory_data_param { batch_size: 4 channels: 1 height: 1 width: 5 } }"""
    path = write(tmp_path, PLAIN_SGD, memory + INPUT_NET[INPUT_NET.index('layer { name: "ip"') :])
    done = run_ranks(
        2,
        f"""
import numpy as np
import engine.caffe as caffe
from engine.comm.world import world
solver = caffe.SGDSolver({path!r})
data = np.arange(80, dtype=np.float32).reshape(16, 1, 1, 5) / 80
solver.net.set_input_arrays(data, np.zeros(16))
found = []
for _ in range(2):
    solver.step(1)
    found += solver.net.blobs["data"].data[:, 0, 0, 0].tolist()
parts = world().gather(found)
if parts:
    first, second = (np.round(np.array(part) * 16).astype(int).tolist() for part in parts)
    print(first, second)
""",
    )
    assert done.stdout == "[0, 1, 2, 3, 8, 9, 10, 11] [4, 5, 6, 7, 12, 13, 14, 15]\n", done.stdout + done.stderr


def test_sharing_with_a_solver(tmp_path):
    text = 'base_lr: 0.05 lr_policy: "fixed" max_iter: 6 test_iter: 1 test_interval: 6'
    solver = caffe.SGDSolver(write(tmp_path, text, digits_net()))
    solver.test_nets[0].share_with(solver.net)  # they share already
    held = solver.net.params["conv"][0].data
    before = solver.test_nets[0].forward()["loss"].copy()
    held *= 3
    assert solver.test_nets[0].forward(start="conv")["loss"] != before
    net = caffe.Net(_net_file(tmp_path), caffe.TEST)
    solver.share_weights(net)
    solver.step(1)
    np.testing.assert_array_equal(net.params["ip2"][0].data, solver.net.params["ip2"][0].data)
    with pytest.raises(EngineError, match="its own weights"):
        solver.net.share_with(caffe.Net(_net_file(tmp_path), caffe.TEST))


def _net_file(folder):
    path = folder / "digits.prototxt"
    path.write_text(digits_net())
    return str(path)


SCRIPT = """
import sys, numpy as np, engine.caffe as caffe
solver = caffe.SGDSolver(sys.argv[1])
solver.step(2)
solver.step(2)
np.save(f"{sys.argv[2]}_{caffe.solver_rank()}_of_{caffe.solver_count()}.npy", solver.net.params["ip1"][0].data)
if len(sys.argv) > 3 and caffe.solver_rank() == 1:
    raise ValueError("one rank fails")
solver.step(1)
"""


@pytest.mark.mpi
def test_two_ranks(tmp_path):
    """The script under mpiexec computes what one rank does with batches of twice the size."""
    text = 'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 6'
    one = caffe.SGDSolver(write(tmp_path, text, digits_net(32)))
    one.step(4)
    path = write(tmp_path, text, digits_net(16))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_ranks(2, [str(script), path, str(tmp_path / "w")])
    assert done.returncode == 0, done.stderr
    ranks = [np.load(tmp_path / f"w_{rank}_of_2.npy") for rank in (0, 1)]
    np.testing.assert_array_equal(*ranks)
    np.testing.assert_allclose(ranks[0], one.net.params["ip1"][0].data, atol=1e-5)
    failed = run_ranks(2, [str(script), path, str(tmp_path / "w"), "fail"])
    assert failed.returncode != 0
    assert "one rank fails" in failed.stderr


SHARDED = "comm_param { shard_updates: true compression: BF16 }"


def twice(folder: Path, texts: list[str], net: str) -> list[str]:
    """Writes each solver, with the net, to a folder of its number, and to whole/ within. Returns these folders."""
    for number, text in enumerate(texts):
        (folder / f"{number}/whole").mkdir(parents=True)
        for place in (folder / f"{number}", folder / f"{number}/whole"):
            write(place, text, net)
    return [str(folder / f"{number}") for number in range(len(texts))]


RESTORED = """
import hashlib
import engine.caffe as caffe
from engine.comm.world import world
def digest():
    arrays = [blob.data.tobytes() for net in (solver.net, *solver.test_nets) for blob in net.params["ip1"]]
    return hashlib.sha256(b"".join(arrays)).hexdigest()

for folder in {folders}:
    solver = caffe.SGDSolver(folder + "/solver.prototxt")
    solver.step(3)
    solver.snapshot()
    solver.step(3)
    solver.restore(folder + "/x_iter_3.solverstate")
    digests = world().gather(digest())
    assert digests is None or len(set(digests)) == 1, digests
    solver.snapshot()
    solver.step(3)
    solver.snapshot()
    whole = caffe.SGDSolver(folder + "/whole/solver.prototxt")
    whole.step(6)
    whole.snapshot()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_every_rank_goes_back(tmp_path):
    """All ranks restore a snapshot of the same solver: its weights and their average."""
    text = 'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 6 test_interval: 100 test_iter: 1 ema: 0.9 '
    folders = twice(tmp_path, [text, f"{text} {SHARDED}"], digits_net(8))
    all_fine(2, RESTORED.format(folders=folders))
    for folder in map(Path, folders):
        for name in ("x_iter_6.caffemodel", "x_iter_6_ema.caffemodel"):
            assert (folder / name).read_bytes() == (folder / "whole" / name).read_bytes(), (folder, name)


BACK = """
import engine.caffe as caffe
for folder in {folders}:
    first = caffe.SGDSolver(folder + "/solver.prototxt")
    first.step(3)
    first.snapshot()
    first.step(1)
    first.restore(folder + "/x_iter_3.solverstate")
    assert not first._solver.optimizer.apart
    first.step(3)
    other = caffe.SGDSolver(folder + "/solver.prototxt")
    other.restore(folder + "/x_iter_3.solverstate")
    other.step(3)
    for layer, blobs in first.net.params.items():
        for mine, its in zip(blobs, other.net.params[layer]):
            assert (mine.data == its.data).all(), layer
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_what_ranks_have_of_their_own_does_not_go_back(tmp_path):
    """The residuals of compression, and how far the weights of ranks have drifted apart, are reset as in a new
    solver."""
    ways = ("compression: BF16 error_feedback: true", "mode: LOCAL sync_every: 5")
    texts = [f'base_lr: 0.05 lr_policy: "fixed" max_iter: 9 comm_param {{ {way} }}' for way in ways]
    all_fine(2, BACK.format(folders=twice(tmp_path, texts, digits_net(8))))


STEPPED = """
import engine.caffe as caffe
for folder in {folders}:
    for place, steps in ((folder, 3), (folder + "/whole", 0)):
        solver = caffe.SGDSolver(place + "/solver.prototxt")
        if steps:
            solver.step(steps)
        solver.solve()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_solve_goes_on_where_step_has_ended(tmp_path):
    """Each rank keeps what it alone has by then: BatchNorm's statistics, its share of an average, weights that are
    averaged later."""
    ways = ("", f"ema: 0.9 {SHARDED}", "comm_param { mode: LOCAL sync_every: 4 }")
    texts = [f'base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 6 {way}' for way in ways]
    folders = twice(tmp_path, texts, NORMED.replace("batch_size: 16", "batch_size: 8"))
    all_fine(2, STEPPED.format(folders=folders))
    for folder, way in zip(map(Path, folders), ways):
        names = [path.name for path in folder.glob("x_iter_6*.caffemodel")]
        assert len(names) == 1 + ("ema" in way)
        for name in names:
            assert (folder / name).read_bytes() == (folder / "whole" / name).read_bytes(), (way, name)


MASKS = """
import numpy as np
import engine.caffe as caffe
from engine.comm.world import world
solver = caffe.SGDSolver("{path}")
solver.net.blobs["data"].data[...] = 1
masks = []
for _ in range(2):
    solver.net.forward(end="data")
    solver.net.forward(start="drop")
    masks.append((solver.net.blobs["drop"].data > 0).tobytes())
masks = world().gather(masks)
assert masks is None or len(set(sum(masks, []))) == 4
assert solver._solver.state.samples_seen == 2 * 2
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_each_rank_and_each_pass_draws_its_own_noise(tmp_path):
    net = INPUT_NET.replace("dim: 5", "dim: 50").replace(
        'layer { name: "ip" type: "InnerProduct" bottom: "data"',
        """layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }
        layer { name: "ip" type: "InnerProduct" bottom: "drop" """,
    )
    all_fine(2, MASKS.format(path=write(tmp_path, PLAIN_SGD, net)))


BEFORE_A_STEP = """
import engine.caffe as caffe
for folder in {folders}:
    solver = caffe.SGDSolver(folder + "/solver.prototxt")
    weights = solver.net.params["ip1"][0].data
    if caffe.solver_rank() == 1:
        weights[...] = 0
    solver.snapshot()
    assert weights.any()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_a_snapshot_before_the_first_step(tmp_path):
    """It has the weights of rank 0 in float32, with which all ranks begin."""
    texts = [f"{PLAIN_SGD} random_seed: 3 {way}" for way in ("", "comm_param { mode: ASYNC }", SHARDED)]
    folders = twice(tmp_path, texts, digits_net(8))
    all_fine(2, BEFORE_A_STEP.format(folders=folders))
    for folder in folders:
        expected = caffe.SGDSolver(f"{folder}/solver.prototxt").net.params["ip1"][0].data
        np.testing.assert_array_equal(read_caffemodel(f"{folder}/x_iter_0.caffemodel")["ip1"][0], expected)


ASYNCHRONOUS = """
import engine.caffe as caffe
from engine.errors import ConfigError
solver = caffe.SGDSolver("{path}")
for call in (solver.apply_update, lambda: solver.add_callback(print, print)):
    try:
        call()
    except ConfigError as error:
        assert "mode: ASYNC does not go together with" in str(error) and "solver.prototxt:1:" in str(error)
    else:
        raise AssertionError
solver.step(4)
solver.step(2)
assert solver.iter == 6
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_a_program_may_not_look_into_asynchronous_steps(tmp_path):
    path = write(tmp_path, f"{PLAIN_SGD} comm_param {{ mode: ASYNC }}", digits_net(8))
    all_fine(2, ASYNCHRONOUS.format(path=path))
    one = caffe.SGDSolver(path)  # a single rank, so it is synchronous
    one.add_callback(lambda: None, lambda: None)
    one.step(1)
    one.apply_update()


CHANGING = """
import sys
sys.path.insert(0, "{folder}")
import engine.caffe as caffe
solver = caffe.SGDSolver("{path}")
solver.step(3)
print("fine", flush=True)
"""
NORMALISED = """
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "loss" type: "Reduction" bottom: "bn" top: "loss" loss_weight: 1 reduction_param { operation: MEAN } }
"""


@pytest.mark.mpi
@pytest.mark.parametrize("sync", [False, True])
def test_shapes_that_change_where_ranks_normalise_together_are_refused(sync, tmp_path):
    """Other ranks may have other shapes at that time, and no rank can tell."""
    (tmp_path / "pictures_of_many_sizes.py").write_text(PICTURES)
    net = PICTURES_NET.partition('layer { name: "loss"')[0] + NORMALISED + ("bn_sync: true" if sync else "")
    program = CHANGING.format(folder=tmp_path, path=write(tmp_path, PLAIN_SGD, net))
    if not sync:
        all_fine(2, program)
        return
    done = run_ranks(2, program)
    assert done.returncode != 0 and "fine" not in done.stdout
    assert "layer 'data' (Python): has given its tops other shapes" in done.stderr, done.stderr


IN_PARTS = """
import engine.caffe as caffe
from engine.errors import ConfigError
solver = caffe.SGDSolver("{path}")
solver.step(2)
for layers in ({{}}, dict(start="ip2")):
    try:
        solver.test_nets[0].forward(**layers)
    except ConfigError as error:
        assert "ip1, ip2 in 2 parts" in str(error), error
    else:
        raise AssertionError
for save in (solver.net.save, solver.net.save_hdf5, solver.test_nets[0].save):
    try:
        save("{path}.caffemodel")
    except ConfigError as error:
        assert "ip1, ip2 in 2 parts" in str(error) and "solver.snapshot()" in str(error), error
    else:
        raise AssertionError
solver.net.forward()
solver.step(1)
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_test_nets_without_the_parts_of_other_ranks(tmp_path):
    """Such test nets are run by step() alone, and no rank may save its part as if it were the whole."""
    text = f"{PLAIN_SGD} test_interval: 1 test_iter: 1 snapshot_after_train: false"
    all_fine(2, IN_PARTS.format(path=write(tmp_path, text, digits_net(8) + divided("ip1", "ip2"))))
    assert not list(tmp_path.glob("*.caffemodel"))
