import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(3)
LAMBDA, ALPHA = 1.0507009873554805, 1.6732632423543772


@pytest.mark.parametrize("kind", ["SeLu", "SELU"])
def test_selu(kind):
    x = RANDOM.normal(size=(2, 3, 4))
    x[np.abs(x) < 0.05] = 0.1
    text = f'layer {{ name: "layer" type: "{kind}" bottom: "x" top: "y" }}'
    expected = LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(x))
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape), {"x": x})


def dropout(params="", kind="SeLuDropout"):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" top: "y" selu_dropout_param {{ {params} }} }}'


@pytest.mark.parametrize("kind", ["SeLuDropout", "SELUDropout", "AlphaDropout"])
@pytest.mark.parametrize("ratio", [0.1, 0.4])
def test_dropout_keeps_mean_and_variance(kind, ratio):
    x = RANDOM.normal(size=(40, 1000)).astype(np.float32)
    net = run(dropout(f"dropout_ratio: {ratio}", kind), x=x)
    y = net.blobs["y"].data
    alpha = -LAMBDA * ALPHA
    a = ((1 - ratio) * (1 + ratio * alpha**2)) ** -0.5
    b = -a * ratio * alpha
    dropped = np.isclose(y, a * alpha + b, atol=1e-4)
    assert abs(dropped.mean() - ratio) < 0.01
    np.testing.assert_allclose(y[~dropped], (a * x + b)[~dropped], rtol=1e-4, atol=1e-4)
    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.03
    set_top_diff(net, "y", np.ones_like(y))
    net.backward()
    doubtful = np.isclose(x, alpha, atol=1e-3)  # such values look dropped but are not
    np.testing.assert_allclose(net.blobs["x"].diff[~doubtful], np.where(dropped, 0, a)[~doubtful], rtol=1e-4)
    np.testing.assert_array_equal(run(dropout(f"dropout_ratio: {ratio}", kind), proto.TEST, x=x).blobs["y"].data, x)


def test_gradients():
    check_gradients(net_text(dropout(), x=(3, 4)), {"x": RANDOM.normal(size=(3, 4))})


def test_errors():
    assert "expected dropout_ratio in [0, 1), got 1" in error_of(dropout("dropout_ratio: 1"), x=(2, 3))
