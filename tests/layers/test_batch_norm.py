import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text, run

RANDOM = np.random.default_rng(10)
CHAIN = """
layer { name: "norm" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { eps: 1e-3 } }
layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true
        filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 3
        weight_filler { type: "gaussian" std: 0.3 } } }
"""


def layer(params=""):
    return f'layer {{ name: "layer" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param {{ {params} }} }}'


def reference(x, eps=1e-5, mean=None, variance=None):
    axes = (0, *range(2, x.ndim))
    shape = [1, -1] + [1] * (x.ndim - 2)
    x = x.astype(np.float64)
    mean = x.mean(axes) if mean is None else mean
    variance = x.var(axes) if variance is None else variance
    return (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + eps), mean, variance


@golden("batch_norm_2d", "batch_norm_global_in_train", "batch_norm_test", "batch_norm_train")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape", [(8, 5), (4, 3, 6), (4, 3, 5, 6), (2, 16, 4, 4), (2, 3, 3, 4, 2)])
def test_forward_and_gradients(shape):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    net = run(layer("eps: 1e-3"), x=x)
    top, mean, variance = reference(x, 1e-3)
    np.testing.assert_allclose(net.blobs["y"].data, top, atol=1e-4)
    n = x.size // shape[1]
    for tensor, expected in zip(net.params["layer"], (mean, variance * n / (n - 1), np.ones(1))):
        np.testing.assert_allclose(tensor.get(), expected, rtol=1e-4)
    check_gradients(net_text(layer("eps: 1e-3"), x=shape), {"x": x})


def test_running_statistics():
    x = RANDOM.normal(2, 3, size=(6, 2)).astype(np.float32)
    net = run(layer("moving_average_fraction: 0.5"), x=x)
    net.forward()
    net.forward()
    np.testing.assert_allclose(net.params["layer"][2].get(), [1.75])
    np.testing.assert_allclose(net.params["layer"][0].get() / 1.75, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(net.params["layer"][1].get() / 1.75, x.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("phase, params", [(proto.TEST, ""), (proto.TRAIN, "use_global_stats: true")])
def test_stored_statistics(phase, params):
    x = RANDOM.normal(size=(4, 3, 2, 2)).astype(np.float32)
    text = net_text(layer(params), x=x.shape)
    stored = [np.array([2, 4, 6]), np.array([2, 8, 1]), np.array([2])]
    net = make_net(text, phase)
    net.blobs["x"].set(x)
    for tensor, values in zip(net.params["layer"], stored):
        tensor.set(values.astype(np.float32))
    top, _, _ = reference(x, 1e-5, stored[0] / 2, stored[1] / 2)
    np.testing.assert_allclose(net.forward()["y"], top, atol=1e-5)
    np.testing.assert_array_equal(net.params["layer"][0].get(), stored[0])
    check_gradients(text, {"x": x}, params={"layer": stored}, phase=phase)


def test_statistics_are_not_for_the_solver():
    net = run(layer(), x=np.ones((4, 3), np.float32))
    assert all(p.statistics and not p.learnable for p in net.all_params())


@pytest.mark.parametrize("shape", [(4, 3), (4, 16, 3, 3), (4, 3, 3, 3)])
def test_scale_and_relu_fused_in(shape):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    results = []
    for passes in ({"fuse", "memory_plan"}, set()):
        net = make_net(net_text(CHAIN, x=shape), passes=frozenset(passes))
        assert len(net.graph.layers) == (3 if passes else 5)
        assert [p.name for p in net.all_params()] == [
            "norm[0]",
            "norm[1]",
            "norm[2]",
            "scale[0]",
            "scale[1]",
            "ip[0]",
            "ip[1]",
        ]
        net.blobs["x"].set(x)
        net.forward()
        net.set_top_diff("z", np.linspace(-1, 1, 12).reshape(4, 3))
        net.backward()
        gradients = [tensor.diff.get() for name in ("scale", "ip") for tensor in net.params[name]]
        results.append([net.outputs()["z"], net.blobs["x"].diff, *gradients, *(t.get() for t in net.params["norm"])])
    for fused, apart in zip(*results):
        np.testing.assert_allclose(fused, apart, rtol=1e-4, atol=1e-5)


def test_a_relu_with_a_slope_stays_a_layer_of_its_own():
    text = CHAIN.replace('type: "ReLU"', 'type: "ReLU" relu_param { negative_slope: 0.1 }')
    assert [each.type for each in make_net(net_text(text, x=(4, 3))).graph.layers][1:3] == ["BatchNorm", "ReLU"]


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))
