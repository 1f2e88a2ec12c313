import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(1)


def layer(bottom="x"):
    return f'layer {{ name: "layer" type: "BatchReindex" bottom: "{bottom}" bottom: "i" top: "y" }}'


def spread(given, rows, count):
    expected = np.zeros((count, *given.shape[1:]))
    np.add.at(expected, rows, given)
    return expected


@golden("batch_reindex")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape", [(5,), (5, 3, 2), (3, 2000)])
def test_forward_and_gradient(shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    rows = np.array([2, 0, 2, 2, 1, 0])
    net = run(layer(), x=x, i=rows.astype(np.float32))
    np.testing.assert_array_equal(net.blobs["y"].data, x[rows])
    given = RANDOM.normal(size=(6, *shape[1:])).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, spread(given, rows, shape[0]), rtol=1e-5, atol=1e-5)
    assert net.blobs["i"].diff is None
    check_gradients(net_text(layer(), x=shape, i=(6,)), {"x": x, "i": rows})


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    rows = np.array([1, 1, 0])
    net = run_blocked(layer("c"), plain={"i": rows.astype(np.float32)}, c=channels)
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["c"].data[rows])
    np.testing.assert_allclose(net.blobs["c"].diff, spread(net.blobs["y"].diff, rows, 2), rtol=1e-5, atol=1e-6)


def test_a_number_outside():
    net = make_net(net_text(layer(), x=(3, 2), i=(2,)))
    net.blobs["i"].set(np.array([0, 3]))
    with pytest.raises(DataError, match=r"layer 'layer': index 3 at position 1 is outside \[0, 3\)"):
        net.forward()


def test_errors():
    message = "layer 'layer' (BatchReindex): expected a second bottom of 1 axis, got (2, 1)"
    assert message in error_of(layer(), x=(3, 2), i=(2, 1))
