import numpy as np
import pytest

from tests.layers.harness import check_golden, check_gradients, error_of, golden, inputs, make_net, net_text, run
from tests.layers.sequences import BATCH, UNITS, drive, layer, shapes_of, values

EXPOSED = {"tops": "y h1", "params": "expose_hidden: true"}


def reference(bottoms, params):
    """Returns all outputs, and the last h."""
    h = bottoms["h"][0].astype(np.float64) if "h" in bottoms else np.zeros((BATCH, UNITS))
    matrix, out, bias = params[-3:]
    tops = []
    for driven, cont in zip(drive(bottoms, params), bottoms["cont"], strict=True):
        h = np.tanh(driven + (cont[:, None] * h) @ matrix.T)
        tops.append(np.tanh(h @ out.T + bias))
    return np.array(tops), h[None]


def parameters(net):
    return [tensor.get().astype(np.float64) for tensor in net.params["layer"]]


@golden("rnn")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("names", ["x cont", "x cont s"])
@pytest.mark.parametrize("features", [(2,), (2, 3)])
def test_forward_and_gradients(names, features):
    bottoms = values(names, features)
    net = run(layer("RNN", names), **bottoms)
    np.testing.assert_allclose(net.blobs["y"].data, reference(bottoms, parameters(net))[0], atol=1e-6)
    check_gradients(net_text(layer("RNN", names), **shapes_of(bottoms)), bottoms)


@pytest.mark.parametrize("names", ["x cont", "x cont s"])
def test_exposed_states(names):
    bottoms = values(names, states="h")
    text = layer("RNN", f"{names} h", **EXPOSED)
    net = run(text, **bottoms)
    for name, expected in zip(("y", "h1"), reference(bottoms, parameters(net)), strict=True):
        np.testing.assert_allclose(net.blobs[name].data, expected, atol=1e-6, err_msg=name)
    check_gradients(net_text(text, **shapes_of(bottoms)), bottoms)


def test_a_last_state_that_no_loss_needs():
    """No loss reads the last state, so whatever is in its diff must not count."""
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }'
    silence = 'layer { name: "silence" type: "Silence" bottom: "h1" }'
    bottoms = values(states="h")
    bottoms["t"] = np.zeros((*bottoms["cont"].shape, UNITS), np.float32)
    text = net_text(layer("RNN", "x cont h", **EXPOSED) + loss + silence, **shapes_of(bottoms))
    check_gradients(text.replace("force_backward: true", ""), bottoms)


def test_a_batch_goes_on_where_the_last_one_ended():
    bottoms = values(steps=4)
    net = make_net(net_text(layer("RNN"), x=(2, BATCH, 2), cont=(2, BATCH)))
    halves = []
    for half in (slice(0, 2), slice(2, 4)):
        for name, blob in inputs(net).items():
            blob.set(bottoms[name][half])
        halves.append(net.forward()["y"].copy())
    np.testing.assert_allclose(np.concatenate(halves), reference(bottoms, parameters(net))[0], atol=1e-6)


def test_errors():
    assert "expected 3 to 4 bottom blobs, got 2" in error_of(layer("RNN", **EXPOSED), x=(4, 3, 2), cont=(4, 3))
    assert "expected a first state of shape (1, 3, 5), got (1, 3, 4)" in error_of(
        layer("RNN", "x cont h", **EXPOSED), x=(4, 3, 2), cont=(4, 3), h=(1, 3, 4)
    )
