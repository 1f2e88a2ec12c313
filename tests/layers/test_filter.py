import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(1)


def layer(bottoms="x", tops="y"):
    bottoms = " ".join(f'bottom: "{name}"' for name in [*bottoms.split(), "s"])
    tops = " ".join(f'top: "{name}"' for name in tops.split())
    return f'layer {{ name: "layer" type: "Filter" {bottoms} {tops} }}'


def picked(x, selector):
    y = np.zeros_like(x)
    rows = np.flatnonzero(selector)
    y[: len(rows)] = x[rows]
    return y


def gradient(given, selector):
    diff = np.zeros_like(given)
    rows = np.flatnonzero(selector)
    diff[rows] = given[: len(rows)]
    return diff


@pytest.mark.parametrize("selector", [[1, 0, 1, 0, -2], [1] * 5, [0] * 5, [0, 0, 0, 0, 0.5]])
def test_forward_and_gradient(selector):
    x, labels = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((5, 3, 4), (5,)))
    net = run(layer("x l", "y z"), x=x, l=labels, s=np.array(selector, np.float32))
    for name, top in (("x", "y"), ("l", "z")):
        bottom, given = net.blobs[name], RANDOM.normal(size=net.blobs[top].shape).astype(np.float32)
        np.testing.assert_array_equal(net.blobs[top].data, picked(bottom.data, selector))
        set_top_diff(net, top, given)
        net.backward()
        np.testing.assert_array_equal(bottom.diff, gradient(given, selector))
    assert net.blobs["s"].diff is None
    text = net_text(layer("x l", "y z"), x=x.shape, l=labels.shape, s=(5,))
    check_gradients(text, {"x": x, "l": labels, "s": selector})


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    selector = np.array([0, 1], np.float32).reshape(2, 1, 1, 1)
    net = run_blocked(layer("c"), plain={"s": selector}, c=channels)
    np.testing.assert_array_equal(net.blobs["y"].data, picked(net.blobs["c"].data, selector.ravel()))
    np.testing.assert_array_equal(net.blobs["c"].diff, gradient(net.blobs["y"].diff, selector.ravel()))


def test_errors():
    name = "layer 'layer' (Filter): "
    assert name + "expected a selector of shape (N) or (N, 1, ...) as last bottom, got (3, 2)" in error_of(
        layer(), x=(3, 4), s=(3, 2)
    )
    assert name + "expected 3 samples, one for each of the selector, got bottom 0 (4, 2)" in error_of(
        layer(), x=(4, 2), s=(3,)
    )
    assert name + "expected 1 tops, one for each bottom but the last, got 2" in error_of(
        layer(tops="y z"), x=(3, 2), s=(3,)
    )
