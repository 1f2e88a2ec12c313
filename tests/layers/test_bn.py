import numpy as np
import pytest

from engine import proto
from engine.net import PASSES
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

RANDOM = np.random.default_rng(21)
SHAPE = (4, 3, 5, 6)
FILLERS = 'slope_filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "uniform" }'
SEGNETS = 'scale_filler { type: "uniform" min: 0.5 max: 2 } shift_filler { type: "uniform" }'


def layer(params=FILLERS, bottom="x", top="y"):
    return f'layer {{ name: "layer" type: "BN" bottom: "{bottom}" top: "{top}" bn_param {{ {params} }} }}'


def sample():
    return RANDOM.normal(2, 3, size=SHAPE).astype(np.float32)


def normalised(x, mean, variance, scale, shift, eps):
    along = (1, -1, *[1] * (x.ndim - 2))
    x = (x.astype(np.float64) - np.reshape(mean, along)) / np.sqrt(np.reshape(variance, along) + eps)
    return x * np.reshape(scale, along) + np.reshape(shift, along)


def statistics(x):
    return x.mean((0, 2, 3), dtype=np.float64), x.var((0, 2, 3), dtype=np.float64)


def test_training():
    x = sample()
    net = run(layer(FILLERS + " momentum: 0.8 eps: 0.01"), x=x)
    scale, shift, mean, variance = (tensor.get() for tensor in net.params["layer"])
    assert scale.shape == mean.shape == (1, 3, 1, 1)
    of_batch = statistics(x)
    np.testing.assert_allclose(net.blobs["y"].data, normalised(x, *of_batch, scale, shift, 0.01), atol=1e-5)
    # the averages begin at 0, and their variance is biased
    for average, value in zip((mean, variance), of_batch, strict=True):
        np.testing.assert_allclose(average.ravel(), 0.2 * value, rtol=1e-5)


def test_gradients_in_training():
    x = sample()
    check_gradients(net_text(layer(), x=SHAPE), {"x": x})


@pytest.mark.parametrize("phase, params", [(proto.TEST, ""), (proto.TRAIN, "frozen: true")])
def test_running_averages(phase, params):
    x = sample()
    net = make_net(net_text(layer(FILLERS + params), x=SHAPE), phase)
    values = [RANDOM.uniform(0.5, 2, (1, 3, 1, 1)).astype(np.float32) for _ in range(4)]
    for tensor, value in zip(net.params["layer"], values, strict=True):
        tensor.set(value)
    net.blobs["x"].set(x)
    scale, shift, mean, variance = values
    np.testing.assert_allclose(net.forward()["y"], normalised(x, mean, variance, scale, shift, 1e-5), atol=1e-5)
    np.testing.assert_array_equal(net.params["layer"][2].get(), mean)


def test_frozen():
    """No parameter has a gradient, whatever lr_mult says, but the bottom has one."""
    text = layer(FILLERS + " frozen: true").replace("bn_param", "param { lr_mult: 1 } bn_param")
    net = run(text, x=sample())
    assert all(tensor.diff is None for tensor in net.params["layer"])
    assert net.params["layer"][3].get().tolist() == np.ones((1, 3, 1, 1)).tolist()
    check_gradients(net_text(text, x=SHAPE), {"x": sample()})


@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_segnets_form_takes_statistics_of_the_batch(phase):
    x = sample()
    net = run(layer(SEGNETS), phase, x=x)
    scale, shift = (tensor.get() for tensor in net.params["layer"])
    np.testing.assert_allclose(net.blobs["y"].data, normalised(x, *statistics(x), scale, shift, 1e-9), atol=1e-5)
    if phase == proto.TRAIN:
        check_gradients(net_text(layer(SEGNETS), x=SHAPE), {"x": x})


def test_segnets_statistics():
    """The statistics are further tops, which compute_bn_statistics.py asks for."""
    x = sample()
    text = layer(SEGNETS).replace('top: "y"', 'top: "y" top: "mean" top: "variance"')
    net = run(text, x=x)
    for name, expected in zip(("mean", "variance"), statistics(x), strict=True):
        assert net.blobs[name].shape == (1, 3, 1, 1)
        np.testing.assert_allclose(net.blobs[name].data.ravel(), expected, rtol=1e-4)
    check_gradients(net_text(text, x=SHAPE), {"x": x}, ignore=["mean", "variance"])
    assert "expected one top: only SegNet's form, without bn_mode INFERENCE" in error_of(
        layer().replace('top: "y"', 'top: "y" top: "m"'), x=SHAPE
    )


def test_segnets_inference():
    x, text = sample(), layer(SEGNETS + " bn_mode: INFERENCE")
    net = run(text, x=x)
    scale, shift = (tensor.get() for tensor in net.params["layer"])
    np.testing.assert_allclose(net.blobs["y"].data, x * scale + shift, rtol=1e-5, atol=1e-6)
    check_gradients(net_text(text, x=SHAPE), {"x": x})


@pytest.mark.parametrize("relu", ["ReLU", "ReLU6"])
@pytest.mark.parametrize("params", [FILLERS, SEGNETS, SEGNETS + " bn_mode: INFERENCE"])
def test_blocked_with_relu(params, relu):
    """The in-place ReLU behind the layer is fused. The results are those without fusion."""
    text = layer(params.replace("max: 2", "max: 12"), "c")
    text += f'layer {{ name: "relu" type: "{relu}" bottom: "y" top: "y" }}'
    fused, apart = (run_blocked(text, c=40, passes=passes) for passes in (PASSES, frozenset()))
    assert (fused.outputs()["y"].max() == 6) == (relu == "ReLU6")
    assert not fused.blobs["y"].tensor.is_plain
    np.testing.assert_allclose(fused.outputs()["y"], apart.outputs()["y"], atol=1e-5)
    np.testing.assert_allclose(fused.blobs["c"].diff, apart.blobs["c"].diff, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("relu", ["", 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'])
def test_blocked_with_two_readers(relu):
    """The layer has a Split behind it, as at the end of a residual block, which is fused, too."""
    readers = """layer { name: "a" type: "Power" bottom: "y" top: "a" power_param { scale: 2 } }
        layer { name: "b" type: "Eltwise" bottom: "y" bottom: "a" top: "b" eltwise_param { operation: PROD } }"""
    fused, apart = (
        run_blocked(layer(FILLERS, "c") + relu + readers, c=40, passes=passes) for passes in (PASSES, frozenset())
    )
    np.testing.assert_allclose(fused.outputs()["b"], apart.outputs()["b"], atol=1e-5)
    np.testing.assert_allclose(fused.blobs["c"].diff, apart.blobs["c"].diff, rtol=1e-4, atol=1e-5)


def test_without_fillers_it_only_normalises():
    net = make_net(net_text(layer(""), x=SHAPE))
    assert [tensor.get().ravel().tolist() for tensor in net.params["layer"][:2]] == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (3,)])
def test_weights_of_files(shape):
    """Forks store the parameters in different shapes."""
    net = make_net(net_text(layer(), x=SHAPE))
    values = [np.arange(1, 4, dtype=np.float32).reshape(shape) * i for i in range(1, 5)]
    assert net.load_weights({"layer": values}, "file") == []
    for tensor, value in zip(net.params["layer"], values, strict=True):
        np.testing.assert_array_equal(tensor.get().ravel(), value.ravel())


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))
    assert "expected no bn_sync: only layers of type BatchNorm have statistics of all ranks" in error_of(
        "bn_sync: true " + layer(), x=SHAPE
    )
