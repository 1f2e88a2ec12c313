import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import BLOCK, check_gradients, error_of, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(3)


def layer(params):
    return f'layer {{ name: "layer" type: "Interp" bottom: "x" top: "y" interp_param {{ {params} }} }}'


def matrix(size, out):
    """Returns (out, size) weights: each row has the two of a pixel of the top."""
    places = np.linspace(0, size - 1, out) if out > 1 else np.zeros(1)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(size)))


def reference(x, height, width, begin=0, end=0):
    x = x[:, :, begin : x.shape[2] - end, begin : x.shape[3] - end]
    return matrix(x.shape[2], height) @ x @ matrix(x.shape[3], width).T


@pytest.mark.parametrize(
    "params, height, width, crop",
    [
        ("height: 9 width: 11", 9, 11, ()),
        ("height: 3 width: 3", 3, 3, ()),
        ("height: 1 width: 6", 1, 6, ()),
        ("zoom_factor: 8", 33, 41, ()),
        ("shrink_factor: 2", 3, 3, ()),
        ("zoom_factor: 3 shrink_factor: 2", 7, 7, ()),
        ("zoom_factor: 2 pad_beg: -1 pad_end: -2", 3, 5, (1, 2)),
    ],
)
def test_forward_and_gradients(params, height, width, crop):
    x = RANDOM.normal(size=(2, 3, 5, 6)).astype(np.float32)
    y = run(layer(params), x=x).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, height, width, *crop), atol=1e-5)
    check_gradients(net_text(layer(params), x=x.shape), {"x": x})


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    net = run_blocked(layer("zoom_factor: 3").replace('bottom: "x"', 'bottom: "c"'), c=channels)
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data, 13, 16), atol=1e-4)


def test_channels_innermost():
    """Channels are innermost behind this convolution, and more than the kernel takes at once."""
    x = RANDOM.normal(size=(2, 17, 9, 8)).astype(np.float32)
    convolution = """layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 70
        kernel_size: 5 weight_filler { type: "gaussian" std: 0.1 } } }"""
    text = net_text(convolution + layer("height: 11 width: 6").replace('bottom: "x"', 'bottom: "c"'), x=x.shape)
    net = make_net(text, keep_all=True)
    net.blobs["x"].set(x)
    net.forward()
    if BLOCK == 16:
        assert net.blobs["y"].tensor.layout == "acdb"
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data, 11, 6), atol=1e-4)
    given = RANDOM.normal(size=net.blobs["y"].shape).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    wanted = matrix(5, 11).T @ given @ matrix(4, 6)
    np.testing.assert_allclose(net.blobs["c"].diff, wanted, atol=1e-4)


def test_corners_stay():
    x = RANDOM.normal(size=(1, 2, 4, 3)).astype(np.float32)
    y = run(layer("height: 23 width: 8"), x=x).blobs["y"].data
    np.testing.assert_array_equal(y[..., ::22, ::7], x[..., ::3, ::2])


@pytest.mark.parametrize(
    "params, message",
    [
        ("", "layer 'layer' (Interp): expected either height and width, or zoom_factor and shrink_factor"),
        ("height: 3 width: 3 zoom_factor: 2", "expected either height and width, or zoom_factor"),
        ("height: 3", "expected height and width of at least 1, got 3 and 0"),
        ("zoom_factor: 0", "expected factors of at least 1, got 0 and 1"),
        ("zoom_factor: 2 pad_beg: 1", "expected pad_beg and pad_end of 0 or below (they crop), got 1 and 0"),
        ("zoom_factor: 2 pad_beg: -5", "expected pads that leave a pixel of (1, 2, 5, 6), got -5 and 0"),
    ],
)
def test_errors(params, message):
    assert message in error_of(layer(params), x=(1, 2, 5, 6))
