import numpy as np
import pytest

from engine.net import PASSES
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, golden, net_text, run

LAYER = 'layer {{ name: "layer" type: "TanH" bottom: "{bottom}" top: "{top}" }}'
RANDOM = np.random.default_rng(1)


def reference(x):
    return np.tanh(x)


@golden("tanh")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 5)])
def test_gradients(shape):
    check_gradients(net_text(LAYER.format(bottom="x", top="y"), x=shape), {"x": RANDOM.normal(size=shape)})


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    """In place it computes the same."""
    apart = PASSES - {"fuse"}  # TanH stays a layer of its own
    net = run_blocked(LAYER.format(bottom="c", top="y"), passes=apart, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c.diff, y.diff * (1 - y.data**2), rtol=1e-4, atol=1e-6)
    within = run_blocked(LAYER.format(bottom="c", top="c"), passes=apart, c=channels)
    np.testing.assert_array_equal(within.outputs()["c"], y.data)
    np.testing.assert_array_equal(within.params["c"][0].diff.get(), net.params["c"][0].diff.get())


def test_large_numbers():
    x = np.array([[-1e4, -100, 0, 100, 1e4]], np.float32)
    with np.errstate(over="ignore"):
        expected = reference(x)
    np.testing.assert_allclose(run(LAYER.format(bottom="x", top="y"), x=x).blobs["y"].data, expected, atol=1e-6)
