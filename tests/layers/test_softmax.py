import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text, run, set_top_diff

LAYER = 'layer {{ name: "layer" type: "Softmax" bottom: "x" top: "y" softmax_param {{ axis: {axis} }} }}'
RANDOM = np.random.default_rng(1)


def reference(x, axis):
    exponentials = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def gradient(y, given, axis):
    y, given = y.astype(np.float64), given.astype(np.float64)
    return y * (given - (y * given).sum(axis, keepdims=True))


@golden("softmax", "softmax_axis2")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shape, axis", [((5, 7), 1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), 0), ((2, 3, 4), -1), ((6,), 0)])
def test_forward_and_gradients(shape, axis):
    x = RANDOM.normal(size=shape).astype(np.float32)
    net = run(LAYER.format(axis=axis), x=x)
    np.testing.assert_allclose(net.blobs["y"].data, reference(x, axis), atol=1e-6)
    check_gradients(net_text(LAYER.format(axis=axis), x=shape), {"x": x})


@pytest.mark.parametrize("classes", [1, 7, 16, 1000])
@pytest.mark.parametrize("around, axis", [((5,), 1), ((), 0), ((2, 3), 2), ((2, 3), 0), ((3, 37), 1), ((2, 1, 1), 1)])
def test_rows_and_columns_of_any_length(classes, around, axis):
    shape = (*around[:axis], classes, *around[axis:])
    x, given = RANDOM.normal(size=(2, *shape)).astype(np.float32)
    net = make_net(net_text(LAYER.format(axis=axis), x=shape))
    net.blobs["x"].set(x)
    net.forward()
    set_top_diff(net, "y", given)
    net.backward()
    y = reference(x, axis)
    np.testing.assert_allclose(net.blobs["y"].data, y, atol=1e-6)
    np.testing.assert_allclose(net.blobs["x"].diff, gradient(y, given, axis), atol=1e-6)


@pytest.mark.parametrize("channels", [21, 32, 40])
@pytest.mark.parametrize("size", [(5, 6), (17, 23)])
@pytest.mark.parametrize("axis", [1, 2])
def test_blocked(channels, size, axis):
    net = run_blocked(LAYER.format(axis=axis).replace('"x"', '"c"'), size=(2, 3, *size), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, axis), atol=1e-6)
    np.testing.assert_allclose(c.diff, gradient(y.data, y.diff, axis), atol=1e-6)


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize("channels", [3, 5, 21, 32])
@pytest.mark.parametrize("size", [(1, 1), (2, 3)])
@pytest.mark.parametrize("type", ["Convolution", "Deconvolution"])
def test_a_score_that_is_nan_makes_all_nan(type, channels, size, place):
    """The layout may have blocks of channels, or channels last."""
    below = f"""layer {{ name: "c" type: "{type}" bottom: "x" top: "c" convolution_param {{ num_output: {channels}
        kernel_size: 1 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}"""
    net = make_net(net_text(below + LAYER.format(axis=1).replace('"x"', '"c"'), x=(2, 3, *size)))
    net.blobs["x"].set(RANDOM.normal(size=(2, 3, *size)))
    bias = np.zeros(channels, np.float32)
    bias[place] = np.nan
    net.params["c"][1].set(bias)
    net.forward()
    assert np.isnan(net.blobs["y"].data).all()


def test_large_scores_do_not_overflow():
    x = np.array([[1e4, 1e4, -1e4]], np.float32)
    np.testing.assert_allclose(run(LAYER.format(axis=1), x=x).blobs["y"].data, [[0.5, 0.5, 0]], atol=1e-6)


def test_in_place():
    x = RANDOM.normal(size=(3, 4)).astype(np.float32)
    net = run('layer { name: "layer" type: "Softmax" bottom: "x" top: "x" }', x=x)
    np.testing.assert_allclose(net.outputs()["x"], reference(x, 1), atol=1e-6)
    check_gradients(net_text('layer { name: "layer" type: "Softmax" bottom: "x" top: "x" }', x=x.shape), {"x": x})


def test_axis_out_of_range():
    assert "axis 2 is out of range for a blob of 2 axes" in error_of(LAYER.format(axis=2), x=(3, 4))
