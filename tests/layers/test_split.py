import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, net_text

RANDOM = np.random.default_rng(1)


def layer(tops, bottom="x"):
    names = " ".join(f'top: "y{i}"' for i in range(tops))
    return f'layer {{ name: "layer" type: "Split" bottom: "{bottom}" {names} }}'


@pytest.mark.parametrize("tops", [1, 2, 3, 5])
def test_gradients(tops):
    check_gradients(net_text(layer(tops), x=(3, 700)), {"x": RANDOM.normal(size=(3, 700))})


@pytest.mark.parametrize("tops", [1, 2, 5])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(tops, channels):
    net = run_blocked(layer(tops, "c"), c=channels)
    for i in range(tops):
        np.testing.assert_array_equal(net.blobs[f"y{i}"].data, net.blobs["c"].data)
    gradient = sum(net.blobs[f"y{i}"].diff.astype(np.float64) for i in range(tops))
    np.testing.assert_allclose(net.blobs["c"].diff, gradient, rtol=1e-5, atol=1e-5)


def test_readers_that_work_in_place():
    """Their common bottom must not be overwritten before the last of them has read it."""
    text = "".join(
        f'layer {{ name: "{name}" type: "{name}" bottom: "c" top: "{name}" }}' for name in ("ReLU", "Sigmoid", "TanH")
    )
    net = run_blocked(text, c=40)
    c = net.blobs["c"].data
    np.testing.assert_allclose(net.blobs["TanH"].data, np.tanh(c), rtol=1e-4, atol=1e-6)
    sigmoid, tanh = net.blobs["Sigmoid"], net.blobs["TanH"]
    gradient = np.where(c > 0, net.blobs["ReLU"].diff, 0) + sigmoid.diff * sigmoid.data * (1 - sigmoid.data)
    gradient += tanh.diff * (1 - tanh.data**2)
    np.testing.assert_allclose(net.blobs["c"].diff, gradient, rtol=1e-4, atol=1e-5)


def test_sums_of_some_of_the_tops():
    """The gradients of two tops share a buffer, which must not be overwritten before the third is added."""
    add = 'layer {{ name: "{2}" type: "Eltwise" bottom: "{0}" bottom: "{1}" top: "{2}" }}'
    sigmoid = 'layer { name: "s" type: "Sigmoid" bottom: "y1" top: "s" }'
    net = run_blocked(layer(3, "c") + sigmoid + add.format("y0", "y2", "t") + add.format("s", "t", "z"), c=40)
    s, z = net.blobs["s"].data, net.blobs["z"]
    np.testing.assert_allclose(net.blobs["c"].diff, z.diff * (2 + s * (1 - s)), rtol=1e-4, atol=1e-5)


def test_a_top_without_a_loss_has_no_gradient():
    text = layer(2, "c") + 'layer { name: "nothing" type: "Silence" bottom: "y1" }'
    net = run_blocked(text, c=40)
    assert not net.blobs["y1"].diff.any()
    np.testing.assert_array_equal(net.blobs["c"].diff, net.blobs["y0"].diff)
