"""What a Python layer raises reaches the script that called the net as it is, as in Caffe."""

import sys
import traceback

import numpy as np
import pytest

import engine.caffe as caffe
from engine.errors import ConfigErrors, EngineError
from tests.caffe.nets import write
from tests.mpi import run_ranks

MODULE = """
import caffe

class Own(Exception):
    def __init__(self, place, *, code):
        super().__init__(f"{code} at {place}")
        self.code = code

class Failing(caffe.Layer):
    def setup(self, bottom, top):
        self.fail = {}
        self._at("setup")

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
        self._at("reshape")

    def forward(self, bottom, top):
        self._at("forward")
        top[0].data[...] = bottom[0].data

    def backward(self, top, propagate_down, bottom):
        self._at("backward")
        bottom[0].diff[...] = top[0].diff

    def _at(self, place):
        if place in self.fail or place == self.param_str:
            raise self.fail.get(place, Own(place, code=7))

class Reader(caffe.Layer):
    count = 0

    def setup(self, bottom, top):
        self.left = int(self.param_str)

    def reshape(self, bottom, top):
        top[0].reshape(2, 3)

    def forward(self, bottom, top):
        self.count += 1
        if self.count % 3 == 0:
            raise FileNotFoundError(2, "broken picture", "x.jpg")
        if self.count > self.left:
            next(iter(()))
        top[0].data[...] = self.count

    def backward(self, top, propagate_down, bottom):
        pass
"""
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'
FAILING = """layer { name: "user" type: "Python" bottom: "x" top: "y"
  python_param { module: "failing_layers" layer: "Failing" param_str: "%s" } }"""
READER = """
layer { name: "reader" type: "Python" top: "x"
  python_param { module: "failing_layers" layer: "Reader" param_str: "%d" } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }
"""


@pytest.fixture(autouse=True)
def module(tmp_path):
    (tmp_path / "failing_layers.py").write_text(MODULE)
    yield
    for name in ("failing_layers", "caffe", "caffe.proto", "caffe.proto.caffe_pb2"):
        sys.modules.pop(name, None)
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]


def make_net(folder, param_str=""):
    return caffe.Net(write(folder, "force_backward: true " + INPUT + FAILING % param_str), caffe.TRAIN)


@pytest.mark.parametrize("place", ["reshape", "forward", "backward"])
@pytest.mark.parametrize("kind", [OSError, StopIteration, KeyError, AttributeError, EngineError])
def test_the_script_gets_what_was_raised(place, kind, tmp_path):
    net = make_net(tmp_path)
    error = net.layers[1].fail[place] = kind("a reason")
    for _ in range(2):
        with pytest.raises(kind) as met:
            net.forward()
            net.backward()
        assert met.value is error
        if hasattr(error, "add_note"):
            said = f"layer 'user' (Python): {place} of failing_layers.Failing failed"
            assert [note.endswith(said) for note in error.__notes__] == [True]
    net.layers[1].fail.clear()
    np.testing.assert_array_equal(net.forward(x=np.ones((2, 3)))["y"], np.ones((2, 3)))


@pytest.mark.parametrize("place", ["setup", "reshape"])
def test_while_a_net_is_built(place, tmp_path):
    with pytest.raises(Exception, match=f"7 at {place}") as met:
        make_net(tmp_path, place)
    assert met.value.code == 7 and not isinstance(met.value, EngineError)
    solver = f'base_lr: 1 lr_policy: "fixed" net: "{tmp_path}/net.prototxt"'
    with pytest.raises(Exception, match=f"7 at {place}") as met:
        caffe.SGDSolver(write(tmp_path, solver, "solver.prototxt"))
    assert met.value.code == 7


def test_beside_other_errors_of_the_net(tmp_path):
    """All errors of the net are told together."""
    other = FAILING.replace('"user"', '"other"').replace('"y"', '"z"')
    with pytest.raises(ConfigErrors, match=r"'user' \(Python\): setup of (.*\n)*.*'other' \(Python\): setup of "):
        caffe.Net(write(tmp_path, INPUT + FAILING % "setup" + other % "setup"), caffe.TEST)


def test_what_led_to_an_error_is_kept(tmp_path):
    net = make_net(tmp_path)
    cause, context, error = ValueError("cause"), ValueError("context"), KeyError("cat")
    error.__cause__, error.__context__ = cause, context
    net.layers[1].fail["forward"] = error
    try:
        net.forward()
    except KeyError:
        text = traceback.format_exc()
    assert (error.__cause__, error.__context__) == (cause, context)
    assert "raise self.fail.get" in text and "UserError" not in text


def test_training_goes_on_after_a_batch_that_is_broken(tmp_path):
    """It goes on until the data end."""
    text = f'base_lr: 0.1 lr_policy: "fixed" net: "{write(tmp_path, READER % 7)}"'
    solver = caffe.SGDSolver(write(tmp_path, text, "solver.prototxt"))
    skipped = []
    while True:
        try:
            solver.step(1)
        except OSError as error:
            skipped.append(error.filename)
        except StopIteration:
            break
    assert (solver.iter, skipped) == (5, ["x.jpg"] * 2)


RANKS = """
import engine.caffe as caffe
solver = caffe.SGDSolver("{folder}/solver.prototxt")
solver.net.layers[0].count = -10 * caffe.solver_rank()
solver.step(9)
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_one_rank_s_error_ends_all(tmp_path):
    text = f'base_lr: 0.1 lr_policy: "fixed" net: "{write(tmp_path, READER % 99)}"'
    write(tmp_path, text, "solver.prototxt")
    done = run_ranks(2, RANKS.format(folder=tmp_path))
    assert done.returncode != 0 and "fine" not in done.stdout
    assert "FileNotFoundError: [Errno 2] broken picture: 'x.jpg'" in done.stderr
