"""AbsVal, BNLL, Clip, ELU, Exp, Log, NegReLU, Power, ReLU6, SELU, Swish, Threshold: functions of one number."""

import numpy as np
import pytest

from engine.errors import EngineError
from engine.net import PASSES
from tests.layers.blocked import run_blocked
from tests.layers.harness import (
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    needs_bf16,
    net_text,
    run,
    set_top_diff,
)

RANDOM = np.random.default_rng(1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elu(alpha):
    return lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


# By type and parameters: the function in float64, and where it has kinks.
FUNCTIONS = {
    "AbsVal": (np.abs, [0]),
    "BNLL": (lambda x: np.logaddexp(0, x), []),
    "Clip clip_param { min: -0.5 max: 0.8 }": (lambda x: np.clip(x, -0.5, 0.8), [-0.5, 0.8]),
    "Clip clip_param { min: 0.5 max: 0.8 }": (lambda x: np.clip(x, 0.5, 0.8), [0.5, 0.8]),
    "ELU": (elu(1), [0]),
    "ELU elu_param { alpha: 0.3 }": (elu(0.3), [0]),
    "ELU elu_param { alpha: -0.5 }": (elu(-0.5), [0]),
    "ELU elu_param { lambda: 1.5 }": (lambda x: 1.5 * elu(1)(x), [0]),
    "Exp": (np.exp, []),
    "Exp exp_param { base: 2 scale: -0.5 shift: 0.7 }": (lambda x: 2 ** (0.7 - 0.5 * x), []),
    "Exp exp_param { scale: 0.5 shift: -1 }": (lambda x: np.exp(0.5 * x - 1), []),
    "Log log_param { shift: 4 }": (lambda x: np.log(4 + x), []),
    "Log log_param { base: 10 scale: 0.5 shift: 2 }": (lambda x: np.log10(2 + 0.5 * x), []),
    "NegReLU": (lambda x: np.minimum(x, 0), [0]),
    "NegReLU relu_param { negative_slope: 0.3 }": (lambda x: np.where(x > 0, 0.3 * x, x), [0]),
    "Power": (lambda x: x, []),
    "Power power_param { scale: -2 shift: 1 }": (lambda x: 1 - 2 * x, []),
    "Power power_param { power: 2 scale: 0.5 shift: 1 }": (lambda x: (1 + 0.5 * x) ** 2, []),
    "Power power_param { power: 3 }": (lambda x: x**3, []),
    "Power power_param { power: 1.7 scale: 0.5 shift: 3 }": (lambda x: (3 + 0.5 * x) ** 1.7, []),
    "Power power_param { power: -0.5 shift: 4 }": (lambda x: (4 + x) ** -0.5, []),
    "Power power_param { power: 0 }": (np.ones_like, []),
    "Power power_param { power: 2 scale: 0 shift: 3 }": (lambda x: np.full_like(x, 9), []),
    "ReLU6": (lambda x: np.clip(x, 0, 6), [0, 6]),
    "SELU": (lambda x: 1.0507009873554805 * elu(1.6732632423543772)(x), [0]),
    "Swish": (lambda x: x * sigmoid(x), []),
    "Swish swish_param { beta: 1.5 }": (lambda x: x * sigmoid(1.5 * x), []),
    "Threshold threshold_param { threshold: 0.2 }": (lambda x: np.where(x > 0.2, 1.0, 0.0), [0.2]),
    "Threshold threshold_param { threshold: -0.2 }": (lambda x: np.where(x > -0.2, 1.0, 0.0), [-0.2]),
}
DIFFERENTIABLE = [name for name in FUNCTIONS if not name.startswith("Threshold")]


def layer(function, bottom="x", top="y"):
    type_, *params = function.split(" ", 1)
    return f'layer {{ name: "layer" type: "{type_}" bottom: "{bottom}" top: "{top}" {" ".join(params)} }}'


def values(shape, kinks):
    """Returns values within (-3, 8) that are away from kinks."""
    x = RANDOM.uniform(-3, 3, shape)
    if 6 in kinks:
        x = RANDOM.uniform(-3, 8, shape)
    for kink in kinks:
        x[np.abs(x - kink) < 0.05] = kink + 0.1
    return x.astype(np.float32)


def derivative(function, x):
    step = 1e-5
    return (function(x.astype(np.float64) + step) - function(x.astype(np.float64) - step)) / (2 * step)


@golden("absval", "bnll", "clip", "elu", "exp", "exp_base", "log", "power", "swish", "swish_beta", "threshold")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4, 5), (3, 2500)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward(name, shape):
    function, kinks = FUNCTIONS[name]
    x = values(shape, kinks)
    y = run(layer(name), x=x).blobs["y"].data
    np.testing.assert_allclose(y, function(x.astype(np.float64)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name):
    x = values((3, 4, 5), FUNCTIONS[name][1])
    check_gradients(net_text(layer(name), x=x.shape), {"x": x}, tolerance=4e-3)


@pytest.mark.parametrize("channels", [32, 40, 5])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_blocked(name, channels):
    function = FUNCTIONS[name][0]
    if name.startswith(("Log", "Power power_param { power: 1.7", "Power power_param { power: -0.5")):
        # keeps values within the function's domain
        front = 'layer { name: "sigmoid" type: "Sigmoid" bottom: "c" top: "t" }'
    else:
        front = 'layer { name: "t" type: "Power" bottom: "c" top: "t" }'
    net = run_blocked(front + layer(name, bottom="t"), c=channels)
    t, y = net.blobs["t"], net.blobs["y"]
    np.testing.assert_allclose(y.data, function(t.data.astype(np.float64)), rtol=2e-5, atol=1e-5)
    near = np.zeros(t.shape, bool)
    for kink in FUNCTIONS[name][1]:
        near |= np.abs(t.data - kink) < 1e-4
    expected = y.diff * derivative(function, t.data)
    np.testing.assert_allclose(t.diff[~near], expected[~near], rtol=1e-3, atol=1e-4)


STAY_FLOAT32 = ("Exp", "Log", *(f"Power power_param {{ power: {power}" for power in ("3", "1.7", "-0.5", "0")))


@needs_bf16
@pytest.mark.parametrize("channels", [32, 40, 5])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_bf16(name, channels):
    net = run_blocked(layer(name, bottom="c"), passes=PASSES - {"fuse"}, precision="bf16", c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    assert c.tensor.dtype == "bf16"
    assert y.tensor.dtype == ("f32" if name.startswith(STAY_FLOAT32) else "bf16")
    if y.tensor.dtype == "f32":
        return
    function, kinks = FUNCTIONS[name]
    np.testing.assert_allclose(y.data, function(c.data.astype(np.float64)), rtol=2**-7, atol=1e-4)
    near = np.zeros(c.shape, bool)
    for kink in kinks:
        near |= np.abs(c.data - kink) < 1e-4
    expected = y.diff * derivative(function, c.data)
    np.testing.assert_allclose(c.diff[~near], expected[~near], rtol=2**-6, atol=0.02)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_in_place(name):
    """What backward needs of the bottom must still be there."""
    before = 'layer { name: "tanh" type: "TanH" bottom: "c" top: "c" }'
    apart = run_blocked(before + layer(name, bottom="c"), c=32)
    within = run_blocked(before + layer(name, bottom="c", top="c"), c=32)
    np.testing.assert_array_equal(within.outputs()["c"], apart.outputs()["y"])
    np.testing.assert_array_equal(within.params["c"][0].diff.get(), apart.params["c"][0].diff.get())


def test_a_convolution_reads_what_was_padded():
    """If f(0) is infinite, the padding of a layout must not become f(0)."""
    positive = 'layer { name: "p" type: "AbsVal" bottom: "c" top: "c" }'
    after = """layer { name: "z" type: "Convolution" bottom: "y" top: "z" convolution_param { num_output: 16
        kernel_size: 1 weight_filler { type: "gaussian" } } }"""
    net = run_blocked(positive + layer("Log", bottom="c") + after, c=5)
    weights, _ = (tensor.get() for tensor in net.params["z"])
    expected = np.einsum("oi,nihw->nohw", weights[:, :, 0, 0], net.blobs["y"].data)
    np.testing.assert_allclose(net.blobs["z"].data, expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(net.params["c"][0].diff.get()).all()


def test_edges():
    x = np.array([-0.5, 0.8, 0, 6], np.float32)
    for name, y, slope in (
        ("Clip clip_param { min: -0.5 max: 0.8 }", [-0.5, 0.8, 0, np.float32(0.8)], [1, 1, 1, 0]),
        ("ReLU6", [0, 0.8, 0, 6], [0, 1, 0, 0]),
        ("AbsVal", [0.5, 0.8, 0, 6], [-1, 1, 0, 1]),
    ):
        net = run(layer(name), x=x)
        set_top_diff(net, "y", np.ones(4))
        net.backward()
        np.testing.assert_array_equal(net.blobs["y"].data, np.array(y, np.float32))
        np.testing.assert_array_equal(net.blobs["x"].diff, slope)


def test_large_numbers():
    x = np.array([-1e4, -100, 100, 1e4], np.float32)
    for name, expected in (("BNLL", [0, 0, 100, 1e4]), ("ELU", [-1, -1, 100, 1e4]), ("Swish", [0, 0, 100, 1e4])):
        np.testing.assert_allclose(run(layer(name), x=x).blobs["y"].data, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name, function, x",
    [
        ("Exp", np.exp, np.linspace(-80, 80, 100001)),
        ("Log", np.log, np.geomspace(1e-35, 1e35, 100001)),
        ("Power power_param { power: 1.75 }", lambda x: x**1.75, np.geomspace(1e-20, 1e20, 100001)),
        ("Power power_param { power: -0.5 }", lambda x: x**-0.5, np.geomspace(1e-35, 1e35, 100001)),
    ],
)
def test_kernels_for_vectors_are_exact(name, function, x):
    x = x.astype(np.float32)
    y = run(layer(name), x=x).blobs["y"].data
    np.testing.assert_allclose(y, function(x.astype(np.float64)), rtol=1e-6)


def test_numbers_without_a_result():
    x = np.array([-np.inf, -1, 0, np.inf, np.nan] * 5, np.float32)
    for name, expected in (
        ("Exp", [0, np.float32(np.exp(-1)), 1, np.inf, np.nan]),
        ("Log", [np.nan, np.nan, -np.inf, np.inf, np.nan]),
        ("Power power_param { power: 1.7 }", [np.inf, np.nan, 0, np.inf, np.nan]),
    ):
        np.testing.assert_allclose(run(layer(name), x=x).blobs["y"].data, expected * 5, rtol=1e-6)


def test_a_power_of_0_has_a_gradient():
    net = run(layer("Power power_param { power: 1.7 }"), x=np.zeros(3, np.float32))
    set_top_diff(net, "y", np.ones(3))
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, 0)


def test_threshold_has_no_backward():
    text = layer("Threshold") + 'layer { name: "l" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
    front = 'layer { name: "ip" type: "InnerProduct" bottom: "i" top: "x" inner_product_param { num_output: 2 } }'
    whole = net_text(front + text, i=(2, 3), t=(2, 2)).replace("force_backward: true", "")
    with pytest.raises(EngineError, match=r"layer 'layer' \(Threshold\): has no backward"):
        make_net(whole)


def test_threshold_sends_no_gradient():
    net = run(layer("Threshold"), x=np.ones(3, np.float32))
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, 0)


@pytest.mark.parametrize(
    "name, message",
    [
        ("Clip clip_param { min: 2 max: 1 }", "expected min up to max, got min 2 and max 1"),
        ("Clip", "expected min and max in clip_param"),
        ("Exp exp_param { base: 0 }", "expected base above 0, or -1 for e, got 0"),
        ("Log log_param { base: 1 }", "expected base above 0 and not 1, or -1 for e, got 1"),
        ("Log log_param { base: -2 }", "expected base above 0 and not 1, or -1 for e, got -2"),
    ],
)
def test_errors(name, message):
    error = error_of(layer(name), x=(2, 3))
    assert message in error and "layer 'layer'" in error


def test_parameters_beyond_a_float():
    text = 'layer { name: "layer" type: "Exp" bottom: "x" top: "y" exp_param { shift: 1e30 } }'
    assert "3:1: layer 'layer' (Exp): its parameters cannot be computed with: math range error" in error_of(
        text, x=(2,)
    )


@pytest.mark.parametrize("function", ["Power power_param { power: -1 }", "Log", "BNLL", "Sigmoid"])
def test_padding_of_blocks_stays_zero(function):
    """Otherwise a convolution would multiply f(0) with the zeros of its own padding, which may give NaN."""
    convolution = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" convolution_param {{
        num_output: {2} kernel_size: 1 weight_filler {{ type: "uniform" min: 0.1 max: 0.2 }} }} }}\n"""
    text = convolution.format("c", "x", 40) + layer(function, "c", "f") + convolution.format("y", "f", 24)
    x = RANDOM.uniform(1, 2, size=(2, 3, 5, 6)).astype(np.float32)
    net = make_net(net_text(text, x=x.shape), keep_all=True)
    net.blobs["x"].set(x)
    net.forward()
    assert not net.blobs["f"].tensor.is_plain
    weights = net.params["y"][0].get()[:, :, 0, 0]
    wanted = np.einsum("oc,nchw->nohw", weights, net.blobs["f"].data)
    np.testing.assert_allclose(net.blobs["y"].data, wanted, rtol=1e-4)
    set_top_diff(net, "y", np.ones_like(wanted))
    net.backward()
    assert np.isfinite(net.blobs["x"].diff).all()
    below = np.einsum("oc,nohw->nchw", net.params["c"][0].get()[:, :, 0, 0], net.blobs["c"].diff)
    np.testing.assert_allclose(net.blobs["x"].diff, below, rtol=1e-4)
