"""Common to recurrent layers: the functions of their gates, products in bf16, and matrices that stay packed."""

import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import Net
from tests.layers import test_gru, test_lstm
from tests.layers.harness import inputs, make_net, needs_bf16, net_text, set_top_diff
from tests.layers.sequences import layer, shapes_of, values

STATES = {"LSTM": "h c", "GRU": "h", "RNN": "h"}
UNITS = 250  # no multiple of the vector's size, so that the last vector is not full


def gates(drives: np.ndarray) -> np.ndarray:
    """Returns c of an LSTM's first step, sigmoid(i) tanh(g). The rows of `drives` (4, units) are those of i, f, o and
    g."""
    units = drives.shape[1]
    text = layer("LSTM", "x cont h c", "y h1 c1", "expose_hidden: true", units)
    state = (1, 1, units)
    net = make_net(net_text(text, x=(1, 1, 1), cont=(1, 1), h=state, c=state))
    net.params["layer"][1].set(drives.astype(np.float32).ravel())
    return net.forward()["c1"].ravel()


@pytest.mark.parametrize("function, row", [("sigmoid", 0), ("tanh", 3)])
def test_gates_are_accurate(function, row):
    generator = np.random.default_rng(3)
    for scale in (1e-20, 1e-3, 0.3, 0.7, 2, 12, 80):
        drives = np.zeros((4, UNITS))
        drives[[0, 3]] = 50  # both functions are 1 there
        drives[row] = scale * generator.uniform(-1, 1, UNITS)
        drives = drives.astype(np.float32).astype(np.float64)
        expected = np.tanh(drives[3]) / (1 + np.exp(-drives[0]))
        np.testing.assert_allclose(gates(drives), expected, rtol=1e-6, err_msg=f"{function} to {scale}")


def test_gates_at_the_ends():
    drives = np.full((4, 21), 50.0)
    ends = [np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0, 100.0]
    drives[0, :7] = drives[3, 7:14] = ends
    found = gates(drives)
    np.testing.assert_array_equal(found[:7], [1, 0, np.nan, 1, 0, 0.5, 1])
    np.testing.assert_array_equal(found[7:14], [1, -1, np.nan, 1, -1, 0, 1])
    np.testing.assert_array_equal(found[14:], 1)


def after_backward(kind: str, params: str, names: str, bottoms: dict, units: int, precision: str) -> dict:
    """Returns the tops, and the gradients of parameters and bottoms."""
    states = STATES[kind]
    tops = "y " + " ".join(f"{name}1" for name in states.split())
    text = layer(kind, f"{names} {states}", tops, f"expose_hidden: true {params}", units)
    net = make_net(net_text(text, **shapes_of(bottoms)), precision=precision)
    for name, blob in inputs(net).items():
        blob.set(bottoms[name])
    found = {name: values.copy() for name, values in net.forward().items()}
    for name in tops.split():
        set_top_diff(net, name, np.cos(7 * np.arange(found[name].size)).reshape(found[name].shape))
    net.backward()
    found |= {f"gradient of {name}": blob.diff.copy() for name, blob in inputs(net).items() if name != "cont"}
    found |= {f"gradient of param {i}": tensor.diff.get() for i, tensor in enumerate(net.params["layer"])}
    return found


@needs_bf16
@pytest.mark.parametrize("units", [5, 72])
@pytest.mark.parametrize("names", ["x cont", "x cont s"])
@pytest.mark.parametrize("kind, params", [("LSTM", ""), ("GRU", ""), ("GRU", "linear_before_reset: true"), ("RNN", "")])
def test_bf16_is_float32_within_a_few_roundings(kind, params, names, units):
    bottoms = values(names, states=STATES[kind], units=units)
    exact, rounded = (after_backward(kind, params, names, bottoms, units, p) for p in ("fp32", "bf16"))
    for what, expected in exact.items():
        assert rounded[what].dtype == np.float32
        error = np.linalg.norm(rounded[what] - expected)
        assert 0 < error <= 0.03 * np.linalg.norm(expected), what


@pytest.mark.parametrize("test", [test_lstm, test_gru], ids=["LSTM", "GRU"])
def test_steps_that_several_threads_share(test):
    """There are more numbers than one thread takes, unlike in the other tests."""
    kind, batch, units = "LSTM" if test is test_lstm else "GRU", 40, 72
    generator = np.random.default_rng(2)
    x = generator.normal(size=(3, batch, 6)).astype(np.float32)
    cont = (generator.random((3, batch)) < 0.5).astype(np.float32)
    cont[0] = 0
    net = make_net(net_text(layer(kind, units=units), x=x.shape, cont=cont.shape))
    for name, blob in inputs(net).items():
        blob.set({"x": x, "cont": cont}[name])
    found = net.forward()["y"]
    params = [tensor.get().astype(np.float64) for tensor in net.params["layer"]]
    state = np.zeros((1, batch, units))
    bottoms = {"x": x, "cont": cont, "h": state, "c": state}
    expected = test.reference(bottoms, params if kind == "LSTM" else net)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", STATES)
def test_states_go_on_when_a_net_is_rebuilt_in_other_shapes(kind):
    """Three steps and then one give the same as four. Other sequences begin with states of 0."""

    def forward(bottoms: dict[str, np.ndarray], before: Net | None = None) -> tuple[Net, np.ndarray]:
        config = parse_net(net_text(layer(kind), **shapes_of(bottoms)), "test.prototxt")
        net = Net(config, proto.TEST, share=before, before=before)
        for name, blob in inputs(net).items():
            blob.set(bottoms[name])
        return net, net.forward()["y"].copy()

    bottoms = values()
    bottoms["cont"][3] = 1
    three, one = ({name: array[steps] for name, array in bottoms.items()} for steps in (slice(3), slice(3, 4)))
    net, y_of_three = forward(three)
    net, y_of_one = forward(one, net)
    np.testing.assert_allclose(np.concatenate([y_of_three, y_of_one]), forward(bottoms)[1], atol=1e-6)
    fewer = {name: array[:, 1:] for name, array in one.items()}
    begun = fewer | {"cont": np.zeros_like(fewer["cont"])}
    np.testing.assert_array_equal(forward(fewer, net)[1], forward(begun)[1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_nets_that_are_only_tested_see_new_weights(kind):
    """Such nets keep matrices in the kernels' own layout."""
    bottoms = values()
    net = make_net(net_text(layer(kind), **shapes_of(bottoms)).replace("force_backward: true", ""), proto.TEST)
    first = net.params["layer"][0].get()

    def forward() -> np.ndarray:
        for name, blob in inputs(net).items():
            blob.set(bottoms[name])
        return net.forward()["y"].copy()

    before, matrix = forward(), net.params["layer"][-1]
    np.testing.assert_array_equal(forward(), before)
    kept = matrix.get()
    matrix.set(kept + 1)
    assert np.abs(forward() - before).max() > 0.01
    matrix.set(kept)
    np.testing.assert_array_equal(forward(), before)
    np.testing.assert_array_equal(net.params["layer"][0].get(), first)
