import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run, set_top_diff

RANDOM = np.random.default_rng(19)


def layer(params="", bottom="x"):
    return f'layer {{ name: "layer" type: "MVN" bottom: "{bottom}" top: "y" mvn_param {{ {params} }} }}'


def reference(x, across=False, variance=True, eps=1e-9):
    axes = tuple(range(1 if across else 2, x.ndim))
    away = x.astype(np.float64) - x.mean(axes, dtype=np.float64, keepdims=True)
    return away / (np.sqrt((away**2).mean(axes, keepdims=True)) + eps) if variance else away


@golden("mvn", "mvn_across")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("eps", [1e-9, 0.5])
def test_forward_and_gradients(across, variance, eps):
    x = RANDOM.normal(3, 2, size=(2, 3, 4, 5)).astype(np.float32)
    params = f"across_channels: {across} normalize_variance: {variance} eps: {eps}".lower()
    top = run(layer(params), x=x).blobs["y"].data
    np.testing.assert_allclose(top, reference(x, across, variance, eps), atol=1e-5)
    check_gradients(net_text(layer(params), x=x.shape), {"x": x})


def test_rows_without_variance():
    net = run(layer("eps: 1"), x=np.full((2, 3, 4), 7, np.float32))
    assert net.blobs["y"].shape == (2, 3, 4, 1)  # as Caffe shapes it
    set_top_diff(net, "y", RANDOM.normal(size=(2, 3, 4, 1)))
    net.backward()
    given = net.blobs["y"].diff[..., 0]
    assert not net.blobs["y"].data.any()
    np.testing.assert_allclose(net.blobs["x"].diff, given - given.mean(2, keepdims=True), atol=1e-6)


def test_a_large_mean_costs_no_accuracy():
    x = (1e4 + RANDOM.normal(size=(1, 1, 50, 50))).astype(np.float32)
    np.testing.assert_allclose(run(layer(), x=x).blobs["y"].data, reference(x), atol=1e-3)


def test_blocked():
    net = run_blocked(layer(bottom="c"), c=40)
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data), atol=1e-5)


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))
