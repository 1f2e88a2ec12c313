import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import BLOCK, check_golden, check_gradients, error_of, golden, make_net, needs_bf16, net_text

RANDOM = np.random.default_rng(1)


def layer(param="", bottoms="a b"):
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "layer" type: "Concat" {names} top: "y" concat_param {{ {param} }} }}'


def check_against_reference(net, names, axis=1):
    np.testing.assert_array_equal(net.blobs["y"].data, np.concatenate([net.blobs[name].data for name in names], axis))
    gradients = np.concatenate([net.blobs[name].diff for name in names], axis)
    np.testing.assert_array_equal(net.blobs["y"].diff, gradients)


@golden("concat", "concat_axis0")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "a, b, param",
    [
        ((2, 3), (2, 4), ""),
        ((2, 3), (1, 3), "axis: 0"),
        ((2, 3), (1, 3), "concat_dim: 0"),
        ((2, 3, 4, 5), (2, 3, 4, 2), "axis: -1"),
        ((3,), (2,), "axis: 0"),
    ],
)
def test_gradients(a, b, param):
    check_gradients(net_text(layer(param), a=a, b=b), {"a": RANDOM.normal(size=a), "b": RANDOM.normal(size=b)})


def test_a_bottom_without_a_gradient():
    """A data blob is copied into the top, but has no gradient."""
    learns = """layer { name: "ip" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 4
        weight_filler { type: "xavier" } } }"""
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "l" }'
    shapes = {"x": (2, 3), "t": (2, 7)}
    text = net_text(learns + layer(bottoms="x c") + loss, **shapes).replace("force_backward: true", "")
    check_gradients(text, {name: RANDOM.normal(size=shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("a, b, c", [(32, 16, 48), (32, 48, 40), (40, 32, 16), (40, 24, 8)])
def test_blocked(a, b, c):
    net = run_blocked(layer(bottoms="a b c"), a=a, b=b, c=c)
    check_against_reference(net, "abc")
    assert net.blobs["y"].tensor.is_plain == (a % BLOCK > 0)  # a bottom cannot begin within a block


@pytest.mark.parametrize("axis", [0, 2, 3])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked_along_other_axes(axis, channels):
    check_against_reference(run_blocked(layer(f"axis: {axis}"), a=channels, b=channels), "ab", axis)


@pytest.mark.parametrize("channels", [3, 160])
def test_row_major_and_blocked_together(channels):
    plain = {"a": RANDOM.normal(size=(2, channels, 5, 6)).astype(np.float32)}
    check_against_reference(run_blocked(layer(bottoms="a b c"), plain=plain, b=32, c=64), "abc")


def test_one_bottom():
    check_against_reference(run_blocked(layer(bottoms="c"), c=40), "c")


def test_shape_and_errors():
    assert make_net(net_text(layer(), a=(2, 3, 4), b=(2, 5, 4))).blobs["y"].shape == (2, 8, 4)
    assert "expected bottoms that differ from (2, 3) in axis 1 only, got (3, 3) for bottom 1" in error_of(
        layer(), a=(2, 3), b=(3, 3)
    )


@needs_bf16
@pytest.mark.parametrize("size", [(9, 1), (1, 9), (1, 1), (9, 4)])
def test_channels_that_lie_last_in_a_column(size):
    """Blobs that are cast to bf16 lie with channels last."""
    conv = """layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {
        num_output: 1 kernel_size: 1 weight_filler { type: "constant" value: 3 } } }"""
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "z" }'
    net = make_net(net_text(conv + layer(bottoms="x c") + norm, x=(4, 1, *size)), precision="bf16")
    x = RANDOM.normal(size=(4, 1, *size)).astype(np.float32)
    net.blobs["x"].set(x)
    net.forward()
    normalised = (x - x.mean()) / x.std()
    np.testing.assert_allclose(net.blobs["z"].data, np.concatenate([normalised] * 2, 1), atol=0.05)


@needs_bf16
@pytest.mark.parametrize("channels", [1, 2])
def test_channels_that_lie_last(channels):
    """With one channel, strides alone do not tell where the channel axis lies."""
    conv = """layer { name: "TOP" type: "Convolution" bottom: "x" top: "TOP" convolution_param {
        num_output: COUNT kernel_size: 1 weight_filler { type: "xavier" } } }""".replace("COUNT", str(channels))
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "z" }'
    text = net_text(conv.replace("TOP", "a") + conv.replace("TOP", "b") + layer() + norm, x=(2, 16, 7, 5))
    x, results = RANDOM.normal(size=(2, 16, 7, 5)), []
    for precision in ("fp32", "bf16"):
        net = make_net(text, precision=precision)
        net.blobs["x"].set(x.astype(np.float32))
        net.forward()
        results.append(net.blobs["z"].data)
    np.testing.assert_allclose(*results, atol=0.1)
