import numpy as np
import pytest

from tests.layers.harness import check_gradients, inputs, make_net, net_text, run, set_top_diff
from tests.layers.sequences import BATCH, UNITS, drive, layer, shapes_of, values


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(bottoms, net):
    """Returns h of all steps, and the last one."""
    params = [tensor.get().astype(np.float64) for tensor in net.params["layer"]]
    linear = params[-1].ndim == 1
    of_z, of_r, of_h = params[-4:-1] if linear else params[-3:]
    h = bottoms["h"][0].astype(np.float64) if "h" in bottoms else np.zeros((BATCH, UNITS))
    tops = []
    for driven, cont in zip(drive(bottoms, params), bottoms["cont"], strict=True):
        h = cont[:, None] * h
        for_z, for_r, for_h = np.split(driven, 3, axis=1)
        z, r = sigmoid(for_z + h @ of_z.T), sigmoid(for_r + h @ of_r.T)
        g = np.tanh(for_h + (r * (h @ of_h.T + params[-1]) if linear else (r * h) @ of_h.T))
        h = g + z * (h - g)
        tops.append(h)
    return np.array(tops), h[None]


@pytest.mark.parametrize("params", ["", "linear_before_reset: true"])
@pytest.mark.parametrize("names", ["x cont", "x cont s"])
@pytest.mark.parametrize("features", [(2,), (2, 3)])
def test_forward_and_gradients(names, features, params):
    bottoms = values(names, features)
    text = layer("GRU", names, params=params)
    net = run(text, **bottoms)
    np.testing.assert_allclose(net.blobs["y"].data, reference(bottoms, net)[0], atol=1e-6)
    check_gradients(net_text(text, **shapes_of(bottoms)), bottoms)


@pytest.mark.parametrize("names", ["x cont", "x cont s"])
def test_exposed_states(names):
    bottoms = values(names, states="h")
    text = layer("GRU", f"{names} h", "y h1", "expose_hidden: true")
    net = run(text, **bottoms)
    for name, expected in zip(("y", "h1"), reference(bottoms, net), strict=True):
        np.testing.assert_allclose(net.blobs[name].data, expected, atol=1e-6, err_msg=name)
    check_gradients(net_text(text, **shapes_of(bottoms)), bottoms)


def test_a_batch_goes_on_where_the_last_one_ended():
    bottoms = values(steps=4)
    net = make_net(net_text(layer("GRU"), x=(2, BATCH, 2), cont=(2, BATCH)))
    halves = []
    for half in (slice(0, 2), slice(2, 4)):
        for name, blob in inputs(net).items():
            blob.set(bottoms[name][half])
        net.forward()
        halves.append(net.blobs["y"].data.copy())
    np.testing.assert_allclose(np.concatenate(halves), reference(bottoms, net)[0], atol=1e-6)


def test_the_gradient_of_the_inner_bias_is_exact_over_many_rows():
    """All gates are half open and each step begins a sequence, so the gradient is a quarter of the top's."""
    steps, batch = 10, 30_000
    net = make_net(net_text(layer("GRU", params="linear_before_reset: true"), x=(steps, batch, 2), cont=(steps, batch)))
    for tensor in net.params["layer"]:
        tensor.set(np.zeros_like(tensor.get()))
    net.forward()
    dy = np.random.default_rng(1).uniform(0, 1, (steps, batch, UNITS)).astype(np.float32)
    set_top_diff(net, "y", dy)
    net.backward()
    np.testing.assert_allclose(net.params["layer"][-1].diff.get(), dy.sum((0, 1), np.float64) / 4, rtol=1e-6)


def test_parameters():
    net = run(layer("GRU", "x cont s", params="linear_before_reset: true"), **values("x cont s"))
    shapes = [tensor.get().shape for tensor in net.params["layer"]]
    square = (UNITS, UNITS)
    assert shapes == [(3 * UNITS, 2), (3 * UNITS,), (3 * UNITS, 4), square, square, square, (UNITS,)]
