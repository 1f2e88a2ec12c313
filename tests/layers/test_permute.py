import itertools

import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(1)


def layer(order, bottom="x"):
    order = " ".join(f"order: {axis}" for axis in order)
    return f'layer {{ name: "layer" type: "Permute" bottom: "{bottom}" top: "y" permute_param {{ {order} }} }}'


@pytest.mark.parametrize("order", [*itertools.permutations(range(4)), (1,), (3, 1), ()])
def test_forward_and_gradients(order):
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    whole = [*order, *(axis for axis in range(4) if axis not in order)]
    np.testing.assert_array_equal(run(layer(order), x=x).blobs["y"].data, x.transpose(whole))
    check_gradients(net_text(layer(order), x=x.shape), {"x": x}, samples=10)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 3, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels, order):
    net = run_blocked(layer(order, "c"), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal(y.data, c.data.transpose(order))
    np.testing.assert_array_equal(c.diff, y.diff.transpose(np.argsort(order)))


def test_errors():
    for order in ([0, 0], [4]):
        message = f"layer 'layer' (Permute): expected different axes below 4 in order, got {order}"
        assert message in error_of(layer(order), x=(2, 3, 4, 5))
