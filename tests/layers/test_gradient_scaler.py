import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import Counters, Net, NetOptions
from tests.layers.harness import PRECISIONS, error_of, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(3)
PARAM = "lower_bound: 0.1 upper_bound: 0.7 alpha: 4 max_iter: 50"


def layer(param=PARAM, blobs="x"):
    bottoms = " ".join(f'bottom: "{each}" top: "{each}2"' for each in blobs)
    return f'layer {{ name: "layer" type: "GradientScaler" {bottoms} gradient_scaler_param {{ {param} }} }}'


def coefficient(step):
    """Returns the coefficient of an iteration as the forks compute it."""
    height, progress = 0.7 - 0.1, min(1, step / 50)
    return 2 * height / (1 + np.exp(-4 * progress)) - height + 0.1


@pytest.mark.parametrize("step", [0, 1, 20, 50, 1000])
def test_each_iteration_has_its_coefficient(step):
    values = {name: RANDOM.normal(size=(2, 3, 4)).astype(np.float32) for name in "xz"}
    net = make_net(net_text(layer(blobs="xz"), **{name: each.shape for name, each in values.items()}))
    for name, each in values.items():
        net.blobs[name].set(each)
    net.run_forward(Counters(step))
    for name, each in values.items():
        np.testing.assert_array_equal(net.blobs[f"{name}2"].data, each)
        set_top_diff(net, f"{name}2", each[::-1])
    net.backward()
    for name, each in values.items():
        np.testing.assert_allclose(net.blobs[name].diff, -coefficient(step) * each[::-1], rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("keep_all", [True, False])
def test_two_branches(precision, keep_all):
    """One branch reads the features as they are, the other through a GradientScaler in place."""
    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 8 dim: 5 dim: 5 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 24 kernel_size: 3
            weight_filler { type: "xavier" } } }
        layer { name: "a" type: "InnerProduct" bottom: "c" top: "a" inner_product_param { num_output: 1
            weight_filler { type: "xavier" } } loss_weight: 1 }"""
    reversed_branch = f"""layer {{ name: "layer" type: "GradientScaler" bottom: "c" top: "r"
            gradient_scaler_param {{ {PARAM} }} }}
        layer {{ name: "b" type: "InnerProduct" bottom: "r" top: "b" inner_product_param {{ num_output: 1
            weight_filler {{ type: "xavier" }} }} loss_weight: 1 }}"""
    plain_branch = reversed_branch.replace("GradientScaler", "Power").replace(
        f"gradient_scaler_param {{ {PARAM} }}", ""
    )
    x, gradients = RANDOM.normal(size=(4, 8, 5, 5)).astype(np.float32), {}
    for name, branch in (("alone", ""), ("plain", plain_branch), ("reversed", reversed_branch)):
        net = Net(parse_net(text + branch), proto.TRAIN, NetOptions(keep_all=keep_all, precision=precision))
        net.feed(net.inputs[0], x)
        net.run_forward(Counters(20))
        net.program.zero_gradients()
        net.program.backward()
        gradients[name] = net.params["c"][0].diff.get()
    of_branch = gradients["plain"] - gradients["alone"]
    expected = gradients["alone"] - coefficient(20) * of_branch
    tolerance = (1e-4 if precision == "fp32" else 3e-2) * np.abs(expected).max()
    np.testing.assert_allclose(gradients["reversed"], expected, atol=tolerance)


def test_defaults():
    x = np.ones((1, 2), np.float32)
    net = run(layer(""), x=x)
    net.run_forward(Counters(1))
    set_top_diff(net, "x2", x)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, -(2 / (1 + np.exp(-10)) - 1) * x, rtol=1e-6)


def test_errors():
    assert "expected lower_bound up to upper_bound" in error_of(layer("lower_bound: 2"), x=(1, 2))
    assert "max_iter of at least 1, got 0, 1, 10 and 0" in error_of(layer("max_iter: 0"), x=(1, 2))
    two_tops = layer().replace("bottom", 'top: "y" bottom')
    assert "expected a top for each bottom, got 1 and 2" in error_of(two_tops, x=(1, 2))
