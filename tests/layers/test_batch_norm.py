import numpy as np
import pytest

from engine import proto
from engine.config import parse_net
from engine.net import PASSES, Net, NetOptions
from tests.layers.harness import (
    PRECISIONS,
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    net_text,
    run,
    set_top_diff,
)

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


def test_no_statistics_yet():
    """A net that has not been trained has sums and a factor of 0."""
    x = RANDOM.normal(size=(4, 3, 2, 2)).astype(np.float32)
    np.testing.assert_allclose(run(layer(), proto.TEST, x=x).blobs["y"].data, x / np.sqrt(1e-5), rtol=1e-5)


@pytest.mark.parametrize("shape", [(20_000, 5), (4, 3, 20, 20), (2, 16, 30, 30)])
def test_values_far_from_zero(shape):
    """The variance is small beside the mean, and must not be lost in the rounding of large numbers."""
    x = (RANDOM.normal(size=shape) + 3000).astype(np.float32)
    np.testing.assert_allclose(run(layer(), x=x).blobs["y"].data, reference(x, 1e-5)[0], rtol=1e-3, atol=1e-3)


def test_who_looks_for_what_is_no_number_asks_no_other_rank():
    net = make_net(net_text(layer("sync: true"), x=(4, 3)))
    asked = []
    net.program.set_ranks(2, asked.append)
    assert net.program.first_nonfinite() == "" and not asked
    net.program.forward()
    assert asked


def test_statistics_are_not_for_the_solver():
    net = run(layer(), x=np.ones((4, 3), np.float32))
    assert all(p.statistics and not p.learnable for p in net.all_params())


@pytest.mark.parametrize("relu", ["ReLU", "ReLU6"])
@pytest.mark.parametrize("shape", [(4, 3), (4, 16, 3, 3), (4, 3, 3, 3)])
def test_scale_and_relu_fused_in(shape, relu):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    text = net_text(CHAIN.replace('"ReLU"', f'"{relu}"').replace("std: 1 ", "std: 6 "), x=shape)
    results = []
    for passes in ({"fuse", "memory_plan"}, set()):
        net = make_net(text, passes=frozenset(passes))
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
        results.append(chain_results(net, x))
    for fused, apart in zip(*results):
        np.testing.assert_allclose(fused, apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("relu", ["ReLU", "ReLU6"])
def test_a_sum_and_its_relu_fused_in(relu, precision):
    """The sum is the shortcut of a residual block. Backward then finds the activation's derivative from the result."""
    x = RANDOM.normal(2, 3, size=(4, 16, 6, 5)).astype(np.float32)
    more = 'layer { name: "sum" type: "Eltwise" bottom: "y" bottom: "c" top: "y" }\n'
    text = net_text(
        'layer { name: "conv" type: "Convolution" bottom: "x" top: "c" '
        'convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "msra" } } }'
        + CHAIN.replace('"x"', '"c"')
        .replace("std: 1 ", "std: 6 ")
        .replace('layer { name: "relu" type: "ReLU"', f'{more}layer {{ name: "relu" type: "{relu}"'),
        x=x.shape,
    )
    results = []
    for passes in ({"fuse", "split", "memory_plan"}, {"split"}):
        net = make_net(text, passes=frozenset(passes), precision=precision)
        types = [layer.type for layer in net.graph.layers]
        assert (relu in types, "Eltwise" in types) == (False, False) if "fuse" in passes else (True, True)
        results.append(chain_results(net, x))
    # Rounding to bf16 moves values near 0 or 6 across the kink, which a sum of few values cannot hide.
    count, error = {"fp32": (None, 1e-5), "bf16": (2, 0.05)}[precision]
    for fused, apart in zip(*(each[:count] for each in results)):
        assert np.linalg.norm(fused - apart) <= error * np.linalg.norm(apart)


def chain_results(net, x):
    """Returns all blobs and gradients of a step of CHAIN."""
    net.blobs["x"].set(x)
    net.forward()
    set_top_diff(net, "z", np.linspace(-1, 1, 3 * len(x)).reshape(-1, 3))
    net.backward()
    gradients = [tensor.diff.get() for name in ("scale", "ip") for tensor in net.params[name]]
    return [net.outputs()["z"], net.blobs["x"].diff, *gradients, *(t.get() for t in net.params["norm"])]


def test_a_relu_with_a_slope_stays_a_layer_of_its_own():
    text = CHAIN.replace('type: "ReLU"', 'type: "ReLU" relu_param { negative_slope: 0.1 }')
    assert [each.type for each in make_net(net_text(text, x=(4, 3))).graph.layers][1:3] == ["BatchNorm", "ReLU"]


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))


@pytest.mark.parametrize("shape", [(8, 5), (4, 3, 6), (8, 16, 4, 4), (12, 3, 4, 5)])
@pytest.mark.parametrize("where", ["layer", "net"])
def test_statistics_of_parts_of_the_batch(shape, where):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    text = layer("eps: 1e-3 moving_average_fraction: 0.5" + (" stats_batch_size: 4" if where == "layer" else ""))
    text += " bn_stats_batch_size: 4" if where == "net" else ""
    net = run(text, x=x)
    parts = [reference(part, 1e-3) for part in np.split(x, shape[0] // 4)]
    np.testing.assert_allclose(net.blobs["y"].data, np.concatenate([top for top, _, _ in parts]), atol=1e-4)
    n, mean, variance, factor = 4 * x[0, 0].size, 0, 0, 0
    for _, m, v in parts:  # the running sums take one part of the batch after the other
        mean, variance, factor = 0.5 * mean + m, 0.5 * variance + v * n / (n - 1), 0.5 * factor + 1
    for tensor, expected in zip(net.params["layer"], (mean, variance, np.array([factor]))):
        np.testing.assert_allclose(tensor.get(), expected, rtol=1e-4)
    check_gradients(net_text(text, x=shape), {"x": x})


def test_parts_of_the_batch_with_scale_and_relu():
    x = RANDOM.normal(2, 3, size=(6, 3, 4, 4)).astype(np.float32)
    text = net_text(CHAIN.replace("eps: 1e-3", "eps: 1e-3 stats_batch_size: 3"), x=x.shape)
    fused, apart = (chain_results(make_net(text, passes=passes), x) for passes in (PASSES, frozenset()))
    for ours, theirs in zip(fused, apart):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_parts_that_do_not_fit():
    assert "stats_batch_size 4 does not divide the batch of 6" in error_of(layer("stats_batch_size: 4"), x=(6, 3))
    assert "exclude each other" in error_of(layer("stats_batch_size: 3 sync: true"), x=(6, 3))


def test_stored_statistics_know_no_parts():
    """With stored statistics a batch that stats_batch_size does not divide is normalised as a whole."""
    x = RANDOM.normal(size=(5, 3)).astype(np.float32)
    parts, whole = (run(layer(f"{text} use_global_stats: true"), x=x) for text in ("stats_batch_size: 4", ""))
    np.testing.assert_array_equal(parts.blobs["y"].data, whole.blobs["y"].data)


@pytest.mark.parametrize("shape", [(8, 5), (4, 3, 6), (2, 16, 4, 4), (4, 3, 4, 5)])
def test_synchronised_on_one_rank(shape):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    alone, synchronised = run(layer("eps: 1e-3"), x=x), run(layer("eps: 1e-3 sync: true"), x=x)
    np.testing.assert_array_equal(synchronised.blobs["y"].data, alone.blobs["y"].data)
    for ours, theirs in zip(synchronised.params["layer"], alone.params["layer"]):
        np.testing.assert_array_equal(ours.get(), theirs.get())
    check_gradients(net_text(layer("eps: 1e-3 sync: true"), x=shape), {"x": x})


@pytest.mark.parametrize("shape", [(4, 3), (4, 16, 3, 3), (4, 3, 3, 3)])
def test_synchronised_with_scale_and_relu(shape):
    x = RANDOM.normal(2, 3, size=shape).astype(np.float32)
    nets = [make_net(net_text(text, x=shape)) for text in (CHAIN.replace("eps: 1e-3", "eps: 1e-3 sync: true"), CHAIN)]
    assert [net.synchronised for net in nets] == [True, False]
    for ours, theirs in zip(*(chain_results(net, x) for net in nets)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("params", ["", "sync: true"])
def test_an_infinite_value_is_seen_behind_a_relu(params):
    """As in Caffe, all values that the statistics of its channel reach become NaN."""
    conv = """layer { name: "conv" type: "Convolution" bottom: "x" top: "y"
      convolution_param { num_output: 16 kernel_size: 1 bias_term: false } }"""
    text = CHAIN.replace('bottom: "x"', 'bottom: "y"').replace("eps: 1e-3", "eps: 1e-3 " + params)
    x = RANDOM.normal(size=(4, 16, 6, 6)).astype(np.float32)
    x[1, 2, 3, 4] = 1e38
    net = make_net(net_text(conv + text, x=x.shape))
    net.params["conv"][0].set(10 * np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1))
    net.blobs["x"].set(x)
    assert not np.isfinite(net.forward()["z"]).any()
    nan = np.isnan(net.blobs["y"].data)
    assert nan[:, 2].all() and nan.sum() == nan[:, 2].size


PADDED_NET = """
force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 6 dim: 8 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "norm" type: "Normalize" bottom: "data" top: "norm" norm_param { across_spatial: false } }
layer { name: "conv" type: "Convolution" bottom: "norm" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "norm" top: "sum" }
layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "ip"
  inner_product_param { num_output: 7 weight_filler { type: "uniform" min: -0.5 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_is_left_in_the_padding_of_blocked_channels(precision):
    """Six channels are padded to blocks of sixteen. What the memory held before, here NaN, must not reach layers that
    read whole blocks."""
    net = Net(parse_net(PADDED_NET, "padded.prototxt"), proto.TRAIN, NetOptions(precision=precision))
    data, label = np.random.default_rng(1).normal(size=(4, 6, 8, 6)).astype(np.float32), np.zeros(4, np.float32)
    found = []
    for values in (data, np.full_like(data, np.nan), data):
        for blob, each in zip(net.inputs, (values, label), strict=True):
            net.feed(blob, each)
        net.run_forward()
        net.program.zero_gradients()
        net.backward()
        gradients = [placed.tensor.diff.get().tobytes() for placed in net.parameters]
        found.append((float(net.blobs["loss"].data), gradients))
    assert np.isfinite(found[0][0]) and np.isnan(found[1][0])
    assert found[0] == found[2]
