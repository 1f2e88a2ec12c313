import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text

RANDOM = np.random.default_rng(1)


def layer(param="", bottoms="x", top="y"):
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    param = f'filler {{ type: "uniform" }} {param}'
    return f'layer {{ name: "layer" type: "Bias" {names} top: "{top}" bias_param {{ {param} }} }}'


@golden("bias", "bias_two_bottoms")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("param", ["", "axis: 0", "axis: 0 num_axes: -1", "axis: -1"])
def test_gradients(shape, param):
    check_gradients(net_text(layer(param), x=shape), {"x": RANDOM.normal(size=shape)})


@pytest.mark.parametrize("coefficients, axis", [((2, 3), 0), ((3,), 1), ((4, 5), 2), ((2, 3, 4, 5), 0)])
def test_gradients_of_two_bottoms(coefficients, axis):
    shape = (2, 3, 4, 5)
    text = net_text(layer(f"axis: {axis}", "x s"), x=shape, s=coefficients)
    check_gradients(text, {"x": RANDOM.normal(size=shape), "s": RANDOM.normal(size=coefficients)})


@pytest.mark.parametrize("top", ["y", "c"])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels, top):
    net = run_blocked(layer(bottoms="c", top=top), c=channels)
    shift, y = net.params["layer"][0], net.blobs[top]
    if top == "y":
        np.testing.assert_allclose(y.data, net.blobs["c"].data + shift.get()[:, None, None], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(net.blobs["c"].diff, y.diff)
    np.testing.assert_allclose(shift.diff.get(), y.diff.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_padding_of_the_layout_stays_zero():
    """The next convolution sums over whole blocks, so a bias must not be added to the padding."""
    convolution = """layer { name: "d" type: "Convolution" bottom: "y" top: "d" convolution_param {
        num_output: 16 kernel_size: 3 } }"""
    net = run_blocked(layer(bottoms="c") + convolution, c=40)
    net.params["d"][0].set(np.ones((16, 40, 3, 3), np.float32))
    net.params["d"][1].set(np.zeros(16, np.float32))
    y = net.blobs["y"].data
    net.forward()
    window = y[:, :, :3, :3].sum((1, 2, 3))
    np.testing.assert_allclose(net.blobs["d"].data[:, 0, 0, 0], window, rtol=1e-4, atol=1e-4)


def test_errors():
    assert "expected a second bottom shaped as the first from axis 1 on, (3,), got (4,)" in error_of(
        layer(bottoms="x s"), x=(2, 3), s=(4,)
    )
