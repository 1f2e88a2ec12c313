import numpy as np
import pytest

from engine.net import PASSES
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, golden, net_text

APART = PASSES - {"fuse"}  # ReLUs stay layers of their own
LAYER = """layer {{ name: "layer" type: "ReLU" bottom: "{bottom}" top: "{top}" relu_param {{
    negative_slope: {slope} }} }}"""


def away_from_zero(shape):
    values = np.random.default_rng(1).uniform(0.1, 1, shape)
    return values * np.random.default_rng(2).choice([-1, 1], shape)


@golden("relu", "relu_slope")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("slope", [0, 0.1, -0.3])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 5)])
def test_gradients(slope, shape):
    check_gradients(net_text(LAYER.format(bottom="x", top="y", slope=slope), x=shape), {"x": away_from_zero(shape)})


@pytest.mark.parametrize("slope", [0, 0.1, -0.3])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(slope, channels):
    net = run_blocked(LAYER.format(bottom="c", top="y", slope=slope), passes=APART, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, np.where(c.data > 0, c.data, slope * c.data), rtol=1e-6)
    np.testing.assert_allclose(c.diff, np.where(c.data > 0, y.diff, slope * y.diff), rtol=1e-6)


@pytest.mark.parametrize("slope", [0, 0.1, -0.3])
def test_in_place(slope):
    """With a negative slope, backward needs the sign of the bottom, which must still be there."""
    apart = run_blocked(LAYER.format(bottom="c", top="y", slope=slope), passes=APART, c=32)
    within = run_blocked(LAYER.format(bottom="c", top="c", slope=slope), passes=APART, c=32)
    np.testing.assert_array_equal(within.outputs()["c"], apart.outputs()["y"])
    np.testing.assert_array_equal(within.params["c"][0].diff.get(), apart.params["c"][0].diff.get())
