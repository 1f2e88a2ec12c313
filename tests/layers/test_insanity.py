import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(4)


def layer(params="", top="y"):
    return f'layer {{ name: "layer" type: "Insanity" bottom: "x" top: "{top}" insanity_param {{ {params} }} }}'


def away_from_zero(shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    x[np.abs(x) < 0.05] = -0.1
    return x


@pytest.mark.parametrize("lower, upper", [(3, 8), (-4, -2)])
def test_training(lower, upper):
    """Negative values are divided by numbers spread evenly between the bounds, and their gradients by the same
    numbers."""
    x = away_from_zero((50, 200))
    net = run(layer(f"lb: {lower} ub: {upper}"), x=x)
    y, negative = net.blobs["y"].data, x < 0
    np.testing.assert_array_equal(y[~negative], x[~negative])
    divisors = x[negative] / y[negative]
    assert lower - 1e-3 < divisors.min() and divisors.max() < upper + 1e-3
    counts, _ = np.histogram(divisors, bins=5, range=(lower, upper))
    assert counts.min() > 0.9 * counts.mean()
    set_top_diff(net, "y", np.ones_like(y))
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, np.where(negative, y / x, 1), rtol=1e-4)
    before = y.copy()
    assert (net.forward((1, 0, 50))["y"] != before)[negative].mean() > 0.9  # anew at each step


@pytest.mark.parametrize("lower, upper", [(3, 8), (-4, -2)])
def test_testing(lower, upper):
    x = away_from_zero((3, 4))
    mean = (upper - lower) / (np.log(abs(upper)) - np.log(abs(lower)))
    y = run(layer(f"lb: {lower} ub: {upper}"), proto.TEST, x=x).blobs["y"].data
    np.testing.assert_allclose(y, np.where(x > 0, x, x / mean), rtol=1e-5)


def test_gradients():
    x = away_from_zero((3, 4, 2, 2))
    check_gradients(net_text(layer(), x=x.shape), {"x": x}, phase=proto.TEST)


def test_in_place():
    x = away_from_zero((3, 4))
    net = run(layer(top="x"), x=x)
    y = net.blobs["x"].data.copy()
    set_top_diff(net, "x", np.ones_like(x))
    net.backward()
    np.testing.assert_allclose(inputs(net)["x"].diff, np.where(x < 0, y / x, 1), rtol=1e-4)


def test_behind_a_convolution():
    """In any layout of the convolution's top, the same numbers are drawn as in row-major order."""
    text = (
        'layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 24 '
        'kernel_size: 1 bias_term: false weight_filler { type: "gaussian" } } }\n' + layer().replace('"x"', '"c"')
    )
    x = RANDOM.normal(size=(2, 3, 5, 5)).astype(np.float32)
    net = run(text, x=x)
    conv, y = net.blobs["c"].data, net.blobs["y"].data
    alone = make_net(net_text(layer(), x=conv.shape))
    alone.blobs["x"].set(conv)
    np.testing.assert_allclose(alone.forward()["y"], y, rtol=1e-6)


def test_errors():
    for bounds, got in (("lb: 5 ub: 5", "5 and 5"), ("lb: -1 ub: 2", "-1 and 2"), ("lb: 0 ub: 2", "0 and 2")):
        wanted = f"expected lb below ub, both positive or both negative, got {got}"
        assert wanted in error_of(layer(bounds), x=(2, 3))
    assert "expected a bottom of at least 1 axis" in error_of(layer(), x=())
