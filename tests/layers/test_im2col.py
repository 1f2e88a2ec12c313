import itertools

import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(3)


def layer(params):
    return f'layer {{ name: "layer" type: "Im2col" bottom: "x" top: "y" convolution_param {{ {params} }} }}'


def reference(x, kernel, stride, pad, dilation):
    """Computes the layer. Window arguments are lists, a number for each spatial axis."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    taps = []
    for at in itertools.product(*map(range, kernel)):
        window = [slice(a * d, a * d + s * n, s) for a, d, s, n in zip(at, dilation, stride, out)]
        taken = x[(slice(None), slice(None), *window)]
        taps.append(taken[(..., *(slice(n) for n in out))])
    return np.stack(taps, 2).reshape(len(x), -1, *out)


@golden("im2col")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, params, window",
    [
        ((2, 3, 7), "kernel_size: 3 stride: 2", ([3], [2], [0], [1])),
        ((2, 3, 6, 5), "kernel_h: 3 kernel_w: 2 pad_h: 1", ([3, 2], [1, 1], [1, 0], [1, 1])),
        ((2, 3, 7, 8), "kernel_size: 3 dilation: 2 stride: 2 pad: 2", ([3, 3], [2, 2], [2, 2], [2, 2])),
        ((1, 2, 3, 4, 5), "kernel_size: 2 pad: 1 pad: 0 pad: 1", ([2] * 3, [1] * 3, [1, 0, 1], [1] * 3)),
    ],
)
def test_forward_and_gradients(shape, params, window):
    x = RANDOM.normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(run(layer(params), x=x).blobs["y"].data, reference(x, *window))
    check_gradients(net_text(layer(params), x=shape), {"x": x})


def test_blocked():
    net = run_blocked(layer("kernel_size: 3 pad: 1").replace('bottom: "x"', 'bottom: "c"'), c=32)
    expected = reference(net.blobs["c"].data, [3, 3], [1, 1], [1, 1], [1, 1])
    np.testing.assert_array_equal(net.blobs["y"].data, expected)


def test_errors():
    assert "layer 'layer' (Im2col): kernel_size is missing" in error_of(layer(""), x=(1, 2, 5, 5))
    assert "expected a bottom of at least 3 axes" in error_of(layer("kernel_size: 2"), x=(1, 2))
    assert "expected a kernel that fits" in error_of(layer("kernel_size: 6"), x=(1, 2, 5, 5))
