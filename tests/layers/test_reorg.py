import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(1)


def layer(param, bottom="x"):
    return f'layer {{ name: "layer" type: "Reorg" bottom: "{bottom}" top: "y" reorg_param {{ {param} }} }}'


def pairs(shape, s):
    """Returns the places of equal elements in two flat blobs: one (C, H, W), whose channels come in s^2 groups, one for
    each pixel of a square, and one (C/s^2, H s, W s)."""
    c, h, w = shape
    for k in range(c):
        for y in range(h):
            for x in range(w):
                group, channel = divmod(k, c // s**2)
                row, column = y * s + group // s, x * s + group % s
                yield (k * h + y) * w + x, (channel * h * s + row) * w * s + column


def reference(x, s, reverse):
    n, c, h, w = x.shape
    y = np.empty_like(x).reshape(n, -1)
    for apart, together in pairs((c, h, w), s):
        source, target = (apart, together) if reverse else (together, apart)
        y[:, target] = x.reshape(n, -1)[:, source]
    return y.reshape((n, c // s**2, h * s, w * s) if reverse else (n, c * s**2, h // s, w // s))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, stride", [((2, 4, 6, 4), 2), ((1, 18, 3, 6), 3), ((2, 3, 4, 5), 1)])
def test_forward_and_gradients(shape, stride, reverse):
    x = RANDOM.normal(size=shape).astype(np.float32)
    text = layer(f"stride: {stride} reverse: {str(reverse).lower()}")
    np.testing.assert_array_equal(run(text, x=x).blobs["y"].data, reference(x, stride, reverse))
    check_gradients(net_text(text, x=shape), {"x": x})


def test_reverse_puts_the_channels_of_a_pixel_into_its_square():
    x = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    y = run(layer("stride: 2 reverse: true"), x=x).blobs["y"].data
    np.testing.assert_array_equal(y, [[[[0, 1], [2, 3]]]])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels, reverse):
    net = run_blocked(layer(f"stride: 2 reverse: {str(reverse).lower()}", "c"), size=(2, 3, 4, 6), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal(y.data, reference(c.data, 2, reverse))
    np.testing.assert_array_equal(reference(c.diff, 2, reverse), y.diff)


def test_errors():
    name = "layer 'layer' (Reorg): "
    assert name + "expected stride above 0 in reorg_param, got 0" in error_of(layer(""), x=(1, 4, 2, 2))
    assert name + "expected a bottom (N, C, H, W), got (4, 4)" in error_of(layer("stride: 2"), x=(4, 4))
    assert name + "expected channels divisible by 4" in error_of(layer("stride: 2"), x=(1, 6, 2, 2))
    assert name + "expected height and width divisible by stride 2" in error_of(layer("stride: 2"), x=(1, 4, 2, 3))
