import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

RANDOM = np.random.default_rng(1)


def layer(group, bottom="x"):
    return f"""layer {{ name: "layer" type: "ShuffleChannel" bottom: "{bottom}" top: "y"
        shuffle_channel_param {{ group: {group} }} }}"""


def places(channels, group):
    """Returns the channel of the bottom that each channel of the top is."""
    return np.arange(channels).reshape(group, -1).T.ravel()


@pytest.mark.parametrize("group", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 4), (3, 6, 4, 5)])
def test_forward_and_gradients(shape, group):
    x = RANDOM.normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(run(layer(group), x=x).blobs["y"].data, x[:, places(6, group)])
    check_gradients(net_text(layer(group), x=shape), {"x": x})


@pytest.mark.parametrize("shape", [(3, 36), (2, 40, 70), (2, 36, 1, 1)])
def test_more_channels_than_fit_into_a_vector(shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(run(layer(4), x=x).blobs["y"].data, x[:, places(shape[1], 4)])


@pytest.mark.parametrize("channels", [32, 40, 12])
@pytest.mark.parametrize("size", [(2, 3, 5, 6), (2, 3, 9, 15)])
def test_blocked(channels, size):
    net = run_blocked(layer(4, "c"), size=size, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    assert y.tensor.layout == c.tensor.layout
    np.testing.assert_array_equal(y.data, c.data[:, places(channels, 4)])
    np.testing.assert_array_equal(c.diff[:, places(channels, 4)], y.diff)


def test_padding_of_half_blocks_is_zero():
    """Reduction adds up the padding with the channels. Here a deconvolution has blocks of 8 channels, where 16 are
    usual."""
    convolution = 'layer {{ name: "{0}" type: "{1}" bottom: "{2}" top: "{0}" convolution_param {{ {3} }} }}'
    text = convolution.format(
        "a", "Convolution", "x", 'num_output: 128 kernel_size: 1 weight_filler { type: "xavier" }'
    )
    text += convolution.format("b", "Convolution", "a", 'num_output: 6 kernel_size: 1 weight_filler { type: "xavier" }')
    param = 'num_output: 6 kernel_size: 2 stride: 3 weight_filler { type: "xavier" }'
    text += convolution.format("c", "Deconvolution", "b", param) + layer(2, "c")
    text += """layer { name: "s" type: "Reduction" bottom: "y" top: "s" loss_weight: 1
        reduction_param { operation: SUMSQ } }"""
    x = RANDOM.normal(size=(2, 4, 25, 30)).astype(np.float32)
    kept = run(text, x=x)
    net = make_net(net_text(text, x=x.shape), keep_all=False)
    net.blobs["x"].set(x)
    for _ in range(2):  # the second time memory is used again, and is not zero
        total = net.forward()["s"]
        net.backward()
    np.testing.assert_allclose(total, (kept.blobs["y"].data.astype(np.float64) ** 2).sum(), rtol=1e-4)


def test_errors():
    message = "layer 'layer' (ShuffleChannel): expected a group that divides 6 channels, got {}"
    for group in (0, 4):
        assert message.format(group) in error_of(layer(group), x=(2, 6, 3, 3))
    assert "expected a bottom of at least 2 axes, got (6,)" in error_of(layer(2), x=(6,))
