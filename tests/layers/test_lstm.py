import numpy as np
import pytest

from tests.layers.harness import (
    check_golden,
    check_gradients,
    error_of,
    golden,
    inputs,
    make_net,
    net_text,
    run,
    set_top_diff,
)
from tests.layers.sequences import BATCH, UNITS, drive, layer, shapes_of, values

EXPOSED = {"tops": "y h1 c1", "params": "expose_hidden: true"}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(bottoms, params):
    """Returns h of all steps, and the last h and c."""
    h, c = (bottoms[name][0].astype(np.float64) if name in bottoms else np.zeros((BATCH, UNITS)) for name in ("h", "c"))
    tops = []
    for driven, cont in zip(drive(bottoms, params), bottoms["cont"], strict=True):
        i, f, o, g = np.split(driven + (cont[:, None] * h) @ params[-1].T, 4, axis=1)
        c = cont[:, None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        tops.append(h)
    return np.array(tops), h[None], c[None]


def parameters(net):
    return [tensor.get().astype(np.float64) for tensor in net.params["layer"]]


@golden("lstm", "lstm_static")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("names", ["x cont", "x cont s"])
@pytest.mark.parametrize("features", [(2,), (2, 3), ()])
def test_forward_and_gradients(names, features):
    bottoms = values(names, features)
    net = run(layer("LSTM", names), **bottoms)
    np.testing.assert_allclose(net.blobs["y"].data, reference(bottoms, parameters(net))[0], atol=1e-6)
    check_gradients(net_text(layer("LSTM", names), **shapes_of(bottoms)), bottoms)


@pytest.mark.parametrize("names", ["x cont", "x cont s"])
def test_exposed_states(names):
    bottoms = values(names, states="h c")
    text = layer("LSTM", f"{names} h c", **EXPOSED)
    net = run(text, **bottoms)
    for name, expected in zip(("y", "h1", "c1"), reference(bottoms, parameters(net)), strict=True):
        np.testing.assert_allclose(net.blobs[name].data, expected, atol=1e-6, err_msg=name)
    check_gradients(net_text(text, **shapes_of(bottoms)), bottoms)


def test_a_batch_goes_on_where_the_last_one_ended():
    bottoms = values(steps=4)
    net = make_net(net_text(layer("LSTM"), x=(2, BATCH, 2), cont=(2, BATCH)))
    halves = []
    for half in (slice(0, 2), slice(2, 4)):
        for name, blob in inputs(net).items():
            blob.set(bottoms[name][half])
        halves.append(net.forward()["y"].copy())
    np.testing.assert_allclose(np.concatenate(halves), reference(bottoms, parameters(net))[0], atol=1e-6)


def test_the_memory_plan_changes_nothing():
    bottoms, results = values("x cont s"), []
    for keep_all in (True, False):
        net = make_net(net_text(layer("LSTM", "x cont s"), **shapes_of(bottoms)), keep_all=keep_all)
        for name, blob in inputs(net).items():
            blob.set(bottoms[name])
        set_top_diff(net, "y", np.cos(net.forward()["y"]))
        net.backward()
        results.append([tensor.diff.get() for tensor in net.params["layer"]])
    for kept, planned in zip(*results, strict=True):
        np.testing.assert_array_equal(planned, kept)


def test_gradients_of_weights_alone():
    """The bottoms are data, which have no gradient. The loss reads the last state only."""
    loss = 'layer { name: "loss" type: "EuclideanLoss" bottom: "c1" bottom: "t" top: "loss" }'
    silence = 'layer { name: "silence" type: "Silence" bottom: "y" bottom: "h1" }'
    bottoms = values(states="h c") | {"t": np.zeros((1, BATCH, UNITS), np.float32)}
    text = net_text(layer("LSTM", "x cont h c", **EXPOSED) + loss + silence, **shapes_of(bottoms))
    check_gradients(text.replace("force_backward: true", ""), bottoms)


def test_shared_weights_add_their_gradients():
    names = " ".join(f'param {{ name: "w{i}" }}' for i in range(3))
    text = layer("LSTM").replace("recurrent_param", names + " recurrent_param")
    second = text.replace('"layer"', '"second"').replace('bottom: "x"', 'bottom: "x2"').replace('top: "y"', 'top: "y2"')
    bottoms = values()
    bottoms["x2"] = -bottoms["x"]
    check_gradients(net_text(text + second, **shapes_of(bottoms)), bottoms)


def test_errors():
    assert "expected 2 to 3 bottom blobs, got 1" in error_of(layer("LSTM", "x"), x=(4, 3, 2))
    assert "expected 4 to 5 bottom blobs, got 2" in error_of(layer("LSTM", **EXPOSED), x=(4, 3, 2), cont=(4, 3))
    assert "expected num_output above 0, got 0" in error_of(layer("LSTM", units=0), x=(4, 3, 2), cont=(4, 3))
    assert "expected a bottom of at least 2 axes (T, N, ...), got (4,)" in error_of(layer("LSTM"), x=(4,), cont=(4, 3))
    assert "expected a second bottom (T, N) that says where sequences begin, (4, 3), got (3, 4)" in error_of(
        layer("LSTM"), x=(4, 3, 2), cont=(3, 4)
    )
    assert "expected a third bottom for all steps, (3, ...), got (2, 3)" in error_of(
        layer("LSTM", "x cont s"), x=(4, 3, 2), cont=(4, 3), s=(2, 3)
    )
    assert "expected a first state of shape (1, 3, 5), got (3, 5)" in error_of(
        layer("LSTM", "x cont h c", **EXPOSED), x=(4, 3, 2), cont=(4, 3), h=(3, 5), c=(1, 3, 5)
    )
