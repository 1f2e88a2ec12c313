"""Python layers, which run a user's code in the program: shapes, gradients, training and errors."""

import gc
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import engine.caffe as caffe
from engine import proto
from engine.config import parse_net
from engine.errors import EngineError
from engine.layers.python import allow_modules
from engine.net import Counters, Net
from tests.layers.harness import check_gradients, error_of, net_text, run
from tests.mpi import REPO
from tests.solver.harness import all_fine, digits_net, make_solver

USER = '''
import caffe
import numpy as np


class Scale(caffe.Layer):
    """y = x * factor * weight"""

    def setup(self, bottom, top):
        self.factor = float(self.param_str)
        self.blobs.add_blob(1)
        self.blobs[0].data[...] = 2

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * self.factor * self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum() * self.factor
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff * self.factor * self.blobs[0].data


class Softmax(caffe.Layer):
    """SoftmaxWithLoss"""

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        exp = np.exp(bottom[0].data - bottom[0].data.max(1, keepdims=True))
        self.prob = exp / exp.sum(1, keepdims=True)
        self.at = np.arange(bottom[0].num), bottom[1].data.astype(int)
        top[0].data[...] = -np.log(self.prob[self.at]).mean()

    def backward(self, top, propagate_down, bottom):
        assert propagate_down == [True, False]
        bottom[0].diff[...] = self.prob
        bottom[0].diff[self.at] -= 1
        bottom[0].diff[...] *= top[0].diff / bottom[0].num


class Source(caffe.Layer):
    """What the phase is, and how often it was asked."""

    def setup(self, bottom, top):
        self.count = 0

    def reshape(self, bottom, top):
        top[0].reshape(2)

    def forward(self, bottom, top):
        self.count += 1
        top[0].data[...] = self.phase, self.count

    def backward(self, top, propagate_down, bottom):
        pass


class Pictures(caffe.Layer):
    """A data layer whose pictures grow; the shape is known in reshape (param_str), or only in forward."""

    def setup(self, bottom, top):
        self.number = 0
        top[0].reshape(1, 1, 2, 2)

    def reshape(self, bottom, top):
        if self.param_str == "reshape":
            top[0].reshape(1, 1, 2 + self.number, 2)

    def forward(self, bottom, top):
        top[0].reshape(1, 1, 2 + self.number, 2)
        top[0].data[...] = self.number
        self.number += 1


class Writer(caffe.Layer):
    """Writes into its bottom, in what `param_str` says."""

    def reshape(self, bottom, top):
        top[0].reshape(1)
        if self.param_str == "reshape":
            bottom[0].data[...] = -7

    def forward(self, bottom, top):
        if self.param_str == "forward":
            bottom[0].data[...] = -7


class Flat(caffe.Layer):
    """Twice its bottom, which it has as rows, from `param_str` on: "reshape", "forward", or "there and back"."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].num, bottom[0].count // bottom[0].num)
        if self.param_str == "reshape":
            bottom[0].reshape(*top[0].shape)

    def forward(self, bottom, top):
        shape = bottom[0].shape
        if self.param_str == "forward":
            bottom[0].reshape(*top[0].shape)
        if self.param_str == "there and back":
            bottom[0].reshape(1)
            bottom[0].reshape(*shape)
        top[0].data[...] = 2 * bottom[0].data.reshape(top[0].shape)

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff.reshape(bottom[0].shape)


class Trimmed(caffe.Layer):
    """Doubles numbers up to the first 0, which a layer that reads until something ends knows only afterwards."""

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].count)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data
        top[0].reshape(int(np.argmin(bottom[0].data)))

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 0
        bottom[0].diff[: top[0].count] = 2 * top[0].diff


class Chosen(caffe.Layer):
    """The elements above a half: as many as there are."""

    def setup(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        chosen = bottom[0].data[bottom[0].data > 0.5]
        top[0].reshape(len(chosen))
        top[0].data[...] = chosen

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 0
        bottom[0].diff[bottom[0].data > 0.5] = top[0].diff


class Late(caffe.Layer):
    """As large as its bottom, unless param_str is "never": the shape is known in forward only."""

    def setup(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        if not self.param_str:
            top[0].reshape(*bottom[0].data.shape)
        top[0].data[...] = 3


class Sum(caffe.Layer):
    def setup(self, bottom, top):
        self.shapes = []

    def reshape(self, bottom, top):
        if bottom[0].data.shape != bottom[1].data.shape:
            raise ValueError("sizes differ")
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        self.shapes.append(top[0].data.shape)
        top[0].data[...] = bottom[0].data + bottom[1].data


class Triple(caffe.Layer):
    """In place."""

    def reshape(self, bottom, top):
        if self.param_str:
            top[0].reshape(1)

    def forward(self, bottom, top):
        top[0].data[...] *= 3
        assert (bottom[0].data == top[0].data).all()

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] *= 3


class Keeper(caffe.Layer):
    """y = 2 x, of blobs that it has kept."""

    def setup(self, bottom, top):
        self.bottom, self.top = bottom[0], top[0]

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        self.top.data[...] = 2 * self.bottom.data

    def backward(self, top, propagate_down, bottom):
        self.bottom.diff[...] = 2 * self.top.diff


class Faulty(caffe.Layer):
    def setup(self, bottom, top):
        if self.param_str == "setup":
            raise KeyError("no such key")

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        if self.param_str == "forward":
            top[0].data[...] = np.ones(77)
        if self.param_str == "reshape":
            top[0].reshape(1, 2)

    def backward(self, top, propagate_down, bottom):
        raise ZeroDivisionError("in backward")


class Lacking(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)


class LackingBackward(Lacking):
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """Puts the user's module into PYTHONPATH, with the consent to import it."""
    allow_modules()
    (tmp_path / "user_layers.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("user_layers", "caffe", "caffe.proto", "caffe.proto.caffe_pb2"):
        sys.modules.pop(name, None)


def layer(name, bottoms="x", param_str="", more=""):
    bottom = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    python = f'python_param {{ module: "user_layers" layer: "{name}" param_str: "{param_str}" }}'
    return f'layer {{ name: "user" type: "Python" {bottom} top: "y" {python} {more} }}'


def test_forward_and_gradients():
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    net = run(layer("Scale", param_str="1.5"), x=x)
    np.testing.assert_allclose(net.forward()["y"], 3 * x, rtol=1e-6)
    check_gradients(net_text(layer("Scale", param_str="1.5"), x=x.shape), {"x": x})


# It has 16 channels, in oneDNN's own layout.
CONVOLUTION = (
    'layer { name: "b" type: "Convolution" bottom: "x" top: "b" '
    "convolution_param { num_output: 16 kernel_size: 1 weight_filler { value: 1 } } }"
)


@pytest.mark.parametrize("when", ["reshape", "forward"])
@pytest.mark.parametrize("maker", ["Convolution", "InnerProduct", "Input"])
def test_what_is_written_into_a_bottom_is_in_the_blob(maker, when, tmp_path):
    """In any layout, the next reader, a look at the blob and the layer that made it must all see what was written."""
    text = {
        "Input": "",
        "Convolution": CONVOLUTION,
        "InnerProduct": 'layer { name: "b" type: "InnerProduct" bottom: "x" top: "b" inner_product_param '
        "{ num_output: 16 weight_filler { value: 1 } } }",
    }[maker]
    bottom = "b" if text else "x"
    power = 'layer { name: "%s" type: "Power" bottom: "%s" top: "%s" power_param { scale: 3 } }'
    text += power % ("p", bottom, "p") + layer("Writer", bottom, when) + power % ("z", bottom, "z")
    for phase in (caffe.TEST, caffe.TRAIN):
        (tmp_path / "net.prototxt").write_text(net_text(text, x=(2, 16, 3, 3)))
        net = caffe.Net(str(tmp_path / "net.prototxt"), phase)
        for x in (1, 2):
            found = net.forward(x=np.full((2, 16, 3, 3), x))
            assert found["p"].all() and (found["z"] == -21).all() and (net.blobs[bottom].data == -7).all()


def test_behind_and_before_blocked_layouts():
    """The convolutions use layouts of oneDNN, but the user's code sees row-major arrays."""
    text = """layer { name: "a" type: "Convolution" bottom: "x" top: "a"
                convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
              %s
              layer { name: "b" type: "Convolution" bottom: "y" top: "b"
                convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }"""
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
    ours = run(text % layer("Scale", "a", "0.5"), x=x).outputs()["b"]
    theirs = run(text % 'layer { name: "user" type: "Power" bottom: "a" top: "y" }', x=x).outputs()["b"]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    check_gradients(net_text(text % layer("Scale", "a", "0.5"), x=x.shape), {"x": x}, samples=10)


def test_a_loss_in_training_is_what_the_built_in_is():
    """The memory plan and fusion are on, as in engine train."""
    text = digits_net()
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }'
    assert loss in text
    python = layer("Softmax", "ip2 label", more="loss_weight: 2").replace('"y"', '"loss"')
    solvers = [
        make_solver("", text.replace(loss, loss[:-1] + "loss_weight: 2 }")),
        make_solver("", text.replace(loss, python)),
    ]
    for solver in solvers:
        solver.feeder.start()
        for _ in range(3):
            solver.step()
        solver.feeder.close()
    ours, theirs = (solver.net.weights_by_layer()["conv"][0] for solver in solvers)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert solvers[0].state.loss == pytest.approx(solvers[1].state.loss, rel=1e-5)


def test_micro_batches_add_up_the_gradients_of_parameters():
    ones = "dummy_data_param { shape { dim: 4 } data_filler { value: 1 } }"
    user = layer("Scale", param_str="1", more="loss_weight: 1 param { lr_mult: 1 }")
    net = f'layer {{ name: "x" type: "DummyData" top: "x" {ones} }} {user}'
    for iter_size in (1, 3):
        solver = make_solver(f"iter_size: {iter_size} base_lr: 1", net)
        solver.feeder.start()
        solver.step()
        solver.optimizer.wait()
        np.testing.assert_allclose(solver.net.params["user"][0].get(), 2 - 4)


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_phase_and_state(phase):
    net = Net(parse_net(layer("Source", ""), "test.prototxt"), phase)
    assert [net.forward()["y"].tolist() for _ in range(2)] == [[phase, 1], [phase, 2]]


def test_the_object_is_in_net_layers(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(net_text(layer("Scale", param_str="3"), x=(2,)))
    net = caffe.Net(str(path), caffe.TEST)
    user = net.layers[1]
    assert (user.factor, user.type) == (3, "Python")
    net.params["user"][0].data[...] = 5
    assert user.blobs[0].data == [5]
    np.testing.assert_array_equal(net.forward(x=[1, 2])["y"], [15, 30])
    net.blobs["x"].reshape(3)
    user.factor = 1
    np.testing.assert_array_equal(net.forward(x=[1, 2, 3])["y"], [5, 10, 15])
    assert net.layers[1] is user
    user.blobs[0].data[...] = 1
    assert net.params["user"][0].data == [1]


def test_a_layer_in_place(tmp_path):
    """The layer works in place behind another layer, and on an input. A layer that reads the blob before it must see
    the old values."""
    power = 'layer { name: "%s" type: "Power" bottom: "%s" top: "%s" power_param { scale: 2 } }'
    user = layer("Triple").replace('"y"', '"x"')
    other = user.replace('"x"', '"a"').replace('"user"', '"other"')
    total = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }'
    text = user + power % ("a", "x", "a") + power % ("b", "a", "b") + other + total
    (tmp_path / "net.prototxt").write_text("force_backward: true " + net_text(text, x=(2,)))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    for _ in range(2):
        np.testing.assert_array_equal(net.forward(x=[1, 2])["sum"], [30, 60])
        np.testing.assert_array_equal(net.backward(sum=[1, 10])["x"], [30, 300])
        np.testing.assert_array_equal(net.blobs["x"].data, [3, 6])
        np.testing.assert_array_equal(net.blobs["a"].data, [18, 36])
    message = error_of(layer("Triple", param_str="1").replace('"y"', '"x"'), x=(2,))
    assert "works in place on 'x' (2,), and cannot give it the shape (1,)" in message


def test_blobs_that_a_layer_keeps(tmp_path):
    (tmp_path / "net.prototxt").write_text("force_backward: true " + net_text(layer("Keeper"), x=(2,)))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    for x in ([1, 2], [3, 4, 5], [6]):
        net.blobs["x"].reshape(len(x))
        np.testing.assert_array_equal(net.forward(x=x)["y"], 2 * np.array(x))
        np.testing.assert_array_equal(net.backward(y=x)["x"], 2 * np.array(x))
    blob = net.layers[1].top
    del net
    gc.collect()
    assert blob.data == blob.diff * 2 == [12]


def test_gradients_of_parameters_outlive_the_net(tmp_path):
    (tmp_path / "net.prototxt").write_text(net_text(layer("Scale", param_str="1"), x=(2,)))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    user = net.layers[1]
    del net
    gc.collect()
    user.blobs[0].diff[...] = 3
    assert (user.blobs[0].diff, user.blobs[0].data) == (3, 2)


def test_running_sums_count_once_where_the_net_is_built_again(tmp_path):
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "x" top: "n" }'
    power = 'layer { name: "power" type: "Power" bottom: "n" top: "p" power_param { scale: 1e-3 shift: 1 } }'
    (tmp_path / "net.prototxt").write_text(net_text(norm + power + layer("Chosen", "p"), x=(4, 1)))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    assert net.forward(x=np.arange(4).reshape(4, 1))["y"].shape == (4,)
    assert net.params["norm"][2].data == 1


@pytest.mark.parametrize("where", ["reshape", "forward"])
def test_a_data_layer_of_many_sizes(where, tmp_path):
    """Data layers of FCN and Faster R-CNN are such. The net takes the new sizes, and no batch is skipped or read
    twice."""
    path = tmp_path / "net.prototxt"
    conv = "convolution_param { num_output: 1 kernel_size: 1 weight_filler { value: 2 } }"
    path.write_text(
        layer("Pictures", "", where) + f'layer {{ name: "conv" type: "Convolution" bottom: "y" top: "conv" {conv} }}'
    )
    net = caffe.Net(str(path), caffe.TEST)
    weights = net.params["conv"][0].data
    for number in range(3):
        result = net.forward()["conv"]
        np.testing.assert_array_equal(result, np.full((1, 1, 2 + number, 2), 2 * number))
        assert net.blobs["y"].shape == result.shape
    weights[...] = 1
    np.testing.assert_array_equal(net.forward()["conv"], np.full((1, 1, 5, 2), 3))


def named(name, text):
    """Renames the layer and its top."""
    return text.replace('"user"', f'"{name}"').replace('top: "y"', f'top: "{name}"')


@pytest.mark.parametrize("late", ["", "never"])
def test_a_layer_that_refuses_the_sizes_of_before(late, tmp_path):
    """The layer is not asked for new sizes before all layers below it have run. If one of them keeps its old size, the
    error is raised."""
    path = tmp_path / "net.prototxt"
    layers = named("x", layer("Pictures", "")) + named("late", layer("Late", "x", late)) + layer("Sum", "x late")
    path.write_text(layers + 'layer { name: "above" type: "Power" bottom: "y" top: "z" power_param { scale: 2 } }')
    net = caffe.Net(str(path), caffe.TEST)
    summing = net.layer_dict["user"]
    np.testing.assert_array_equal(net.forward()["z"], np.full((1, 1, 2, 2), 6))
    for number in (1, 2):
        if late:
            with pytest.raises(ValueError, match="sizes differ"):
                net.forward()
            np.testing.assert_array_equal(net.blobs["x"].data, np.full((1, 1, 2 + number, 2), number))
            np.testing.assert_array_equal(net.forward(start="above")["z"], np.full((1, 1, 2, 2), 6))
        else:
            np.testing.assert_array_equal(net.forward()["z"], np.full((1, 1, 2 + number, 2), 6 + 2 * number))
        assert net.layer_dict["user"] is summing
    assert summing.shapes == ([(1, 1, 2, 2)] if late else [(1, 1, 2 + number, 2) for number in range(3)])


def test_a_layer_in_the_middle_that_changes_size(tmp_path):
    path = tmp_path / "net.prototxt"
    double = 'layer { name: "%s" type: "Power" bottom: "%s" top: "%s" power_param { scale: 2 } }'
    text = net_text(double % ("before", "x", "b") + layer("Chosen", "b") + double % ("after", "y", "z"), x=(4,))
    path.write_text(text)
    net = caffe.Net(str(path), caffe.TEST)
    for x in ([0, 1, 2, 3], [1, 1, 1, 1], [5, 0, 0, 0]):
        expected = [4 * value for value in x if value]
        np.testing.assert_array_equal(net.forward(x=x)["z"], expected)
    net.blobs["b"].data[...] = [1, 0, 1, 0]
    np.testing.assert_array_equal(net.forward(start="user")["z"], [2, 2])
    np.testing.assert_array_equal(net.blobs["x"].data, [5, 0, 0, 0])
    net.backward(z=[1, 3])
    np.testing.assert_array_equal(net.blobs["b"].diff, [2, 0, 6, 0])


@pytest.mark.parametrize("when", ["reshape", "forward", "there and back"])
@pytest.mark.parametrize("below", ["", CONVOLUTION])
def test_a_bottom_that_is_reshaped_is_the_next_batch_s_too(when, below, tmp_path):
    text = net_text(below + layer("Flat", "b" if below else "x", param_str=when), x=(2, 16, 1, 2))
    (tmp_path / "net.prototxt").write_text("force_backward: true " + text)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    factor = 32 if below else 2
    for x in (1, 2, 3):
        y = net.forward(x=np.full((2, 16, 1, 2), x))["y"]
        np.testing.assert_array_equal(y, np.full((2, 32), factor * x))
        np.testing.assert_array_equal(net.backward(y=np.ones_like(y))["x"], np.full((2, 16, 1, 2), factor))


def test_a_top_that_is_reshaped_keeps_what_is_in_it(tmp_path):
    double = 'layer { name: "after" type: "Power" bottom: "y" top: "z" power_param { scale: 2 } }'
    (tmp_path / "net.prototxt").write_text(net_text(layer("Trimmed") + double, x=(4,)))
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)
    for x in ([1, 2, 3, 0], [4, 0, 5, 6], [7, 8, 0, 9]):
        np.testing.assert_array_equal(net.forward(x=x)["z"], 4 * np.array(x[: x.index(0)]))


def test_a_top_without_rows(tmp_path):
    """Caffe runs such a net. Here it is refused for this batch, and the next forward works again."""
    path = tmp_path / "net.prototxt"
    double = 'layer { name: "after" type: "Power" bottom: "y" top: "z" power_param { scale: 2 } }'
    path.write_text(net_text(layer("Chosen", "x") + double, x=(4,)))
    net = caffe.Net(str(path), caffe.TEST)
    for x in ([0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]):
        if any(x):
            np.testing.assert_array_equal(net.forward(x=x)["z"], [2] * sum(x))
            continue
        with pytest.raises(EngineError, match=r"'user' \(Python\): top 'y' would be 0, .* give one dummy row"):
            net.forward(x=x)


def test_errors_name_the_layer_and_show_the_user_s_lines():
    message = error_of(layer("Faulty", param_str="setup"), x=(2,))
    assert "layer 'user' (Python): setup of user_layers.Faulty failed\n" in message
    assert 'raise KeyError("no such key")' in message
    assert "_guard" not in message
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(EngineError, match=r"forward of user_layers.Faulty failed\n[^$]*could not broadcast"):
        run(layer("Faulty", param_str="forward"), x=x)
    with pytest.raises(EngineError, match=r"given its tops the shapes \[\(1, 2\)\], but .* built for \[\(2, 3\)\]"):
        run(layer("Faulty", param_str="reshape"), x=x)
    net = run(layer("Faulty"), x=x)
    with pytest.raises(EngineError, match="backward of") as error:
        net.backward()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_layer_without_the_methods_that_it_needs():
    x = np.zeros((2, 3), np.float32)
    failed = "user_layers.Lacking failed\nNotImplementedError: class Lacking has no "
    with pytest.raises(EngineError, match="forward of " + re.escape(failed + "forward(self, bottom, top)") + "$"):
        run(layer("Lacking"), x=x)
    net = run(layer("LackingBackward"), x=x)
    with pytest.raises(EngineError, match=r"LackingBackward has no backward\(self, top, propagate_down, bottom\)$"):
        net.backward()


def test_names_that_are_not_there(tmp_path):
    assert "has no class 'Scael'; did you mean 'Scale'?" in error_of(layer("Scael"), x=(2,))
    text = layer("Scale").replace("user_layers", "no_such_module")
    assert "'no_such_module' is neither in PYTHONPATH nor beside the prototxt" in error_of(text, x=(2,))
    (tmp_path / "needing.py").write_text("import no_such_package")
    message = error_of(layer("Scale").replace("user_layers", "needing"), x=(2,))
    assert "module 'needing' needs 'no_such_package'" in message
    (tmp_path / "broken.py").write_text("1 / 0")
    assert "ZeroDivisionError" in error_of(layer("Scale").replace("user_layers", "broken"), x=(2,))
    (tmp_path / "leaving.py").write_text("import sys; sys.exit()")
    assert "import of leaving.Scale failed" in error_of(layer("Scale").replace("user_layers", "leaving"), x=(2,))


def test_engine_train_finds_the_module_beside_the_net(tmp_path):
    folder = tmp_path / "nets"
    folder.mkdir()
    (tmp_path / "user_layers.py").rename(folder / "user_layers.py")
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }'
    python = layer("Softmax", "ip2 label", more="loss_weight: 1").replace('"y"', '"loss"')
    (folder / "net.prototxt").write_text(digits_net().replace(loss, python))
    solver = folder / "solver.prototxt"
    solver.write_text(
        textwrap.dedent(f"""
            net: "{folder}/net.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 40 display: 20
            snapshot_after_train: false""")
    )
    command = [sys.executable, "-m", "engine", "train", "--solver", str(solver), "--python_layers"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"Iteration \d+.*, loss = ([\d.]+)", done.stderr)]
    assert losses[-1] < losses[0]


WRITER = """
import caffe


class Writer(caffe.Layer):
    def setup(self, bottom, top):
        self.file, self.itself = open(self.param_str, "w"), self

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.file.write("forward\\n")
"""


def test_engine_time_ends_what_a_layer_has_written(tmp_path):
    """The file is complete at the end, as Python closes files that nobody has closed, although the layer that holds it
    is in a cycle of references."""
    (tmp_path / "writing.py").write_text(WRITER)
    net, written = tmp_path / "net.prototxt", tmp_path / "written"
    net.write_text(
        'layer { name: "w" type: "Python" top: "y" python_param { module: "writing" layer: "Writer" '
        f'param_str: "{written}" }} }}'
    )
    command = [sys.executable, "-m", "engine", "time", "--model", str(net), "--iterations", "3", "--python_layers"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert written.read_text().startswith("forward\n")


READER = """
import caffe


class Reader(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(4, 3)

    def forward(self, bottom, top):
        top[0].data[...] = 1 + caffe.solver_rank()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2])
def test_that_ranks_do_not_share_what_a_python_layer_reads_is_told_once(ranks, tmp_path):
    (tmp_path / "reader_layers.py").write_text(READER)
    net = """layer { name: "data" type: "Python" top: "x" python_param { module: "reader_layers" layer: "Reader" } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }"""
    program = f"""
import engine.caffe  # which closes the world
from engine.comm.world import world
from engine.layers.python import allow_modules
from tests.solver.harness import solve
allow_modules()
solve("max_iter: 2", {net!r}, {str(tmp_path)!r}, world=world())
print("fine", flush=True)
"""
    told = (
        "Layer 'data' (Python) reads data by itself, on each of 2 ranks: unless its code gives each rank other samples"
    )
    assert all_fine(ranks, program).count(told) == ranks - 1


LAZY = '''
import caffe
import numpy as np


class Lazy(caffe.Layer):
    """A loss that leaves to its arrays what they held, as Caffe's blobs allow: a gradient that forward computes, rows
    that are written once, a second top of setup()."""

    def setup(self, bottom, top):
        top[0].reshape(1)
        top[1].reshape(3)
        top[1].data[...] = [1, 2, 3]

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        assert not bottom[1].diff.any()
        top[0].data[...] = bottom[0].data.sum() + bottom[1].data.sum()
        bottom[0].diff[...] = 1

    def backward(self, top, propagate_down, bottom):
        assert propagate_down == [True, True]
        bottom[0].diff[...] *= 3
'''
LAZY_NET = """
layer {{ name: "data" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: 4 dim: 16 }}
  data_filler {{ type: "gaussian" }} }} }}
{}
layer {{ name: "user" type: "Python" bottom: "{}" bottom: "{}" top: "loss" top: "kept" loss_weight: 1 loss_weight: 0
  python_param {{ module: "lazy_layers" layer: "Lazy" }} }}
"""


def test_arrays_are_as_the_user_s_code_has_left_them(tmp_path, monkeypatch):
    """This also holds in a net whose blobs share memory: no values of other blobs come into the arrays, nor theirs into
    other blobs."""
    (tmp_path / "lazy_layers.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    inner, bottom = "", {}
    for branch in "ab":
        bottom[branch] = "x"
        for depth in range(3):
            top = f"{branch}{depth}"
            inner += (
                f'layer {{ name: "{top}" type: "InnerProduct" bottom: "{bottom[branch]}" top: "{top}" '
                'inner_product_param { num_output: 16 weight_filler { type: "xavier" } } }\n'
            )
            bottom[branch] = top
    allow_modules()
    net = Net(parse_net(LAZY_NET.format(inner, bottom["a"], bottom["b"])), proto.TRAIN)
    assert not net.options.keep_all
    user = next(layer for layer in net.graph.layers if layer.name == "user")
    for step in range(3):
        net.run_forward(Counters(step))
        net.program.backward()
        gradients = {placed.name: placed.tensor.diff.get() for placed in net.parameters}
        np.testing.assert_array_equal(gradients["a2[1]"], np.full(16, 12))
        assert not any(values.any() for name, values in gradients.items() if name.startswith("b"))
        np.testing.assert_array_equal(user._top[1].data, [1, 2, 3])
