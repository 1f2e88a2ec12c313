import numpy as np
import pytest

from tests.layers.harness import PRECISIONS, check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff
from tests.layers.sequences import BATCH, FILLERS, STEPS, UNITS, shapes_of, values


def layer(bottoms="x", params="", units=UNITS):
    names = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    param = f"lstm_param {{ num_output: {units} {FILLERS} {params} }}"
    return f'layer {{ name: "layer" type: "Lstm" {names} top: "y" {param} }}'


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(x, params, cont=None):
    """Computes h (T, N, H) of x (T, N, I)."""
    of_x, of_h, bias = (array.astype(np.float64) for array in params)
    h = c = np.zeros((x.shape[1], of_h.shape[1]))
    result = []
    for t, step in enumerate(x.astype(np.float64)):
        kept = np.full((x.shape[1], 1), float(t > 0)) if cont is None else cont[t][:, None]
        i, f, o, g = np.split(step @ of_x.T + bias + (kept * h) @ of_h.T, 4, axis=1)
        c = kept * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        result.append(h)
    return np.array(result)


def parameters(net):
    return [tensor.get() for tensor in net.params["layer"]]


@pytest.mark.parametrize("bottoms", ["x", "x cont"])
def test_formula_and_gradients(bottoms):
    given = values(bottoms)
    net = run(layer(bottoms), **given)
    assert [array.shape for array in parameters(net)] == [(4 * UNITS, 2), (4 * UNITS, UNITS), (4 * UNITS,)]
    expected = reference(given["x"], parameters(net), given.get("cont"))
    np.testing.assert_allclose(net.blobs["y"].data, expected, atol=1e-6)
    np.testing.assert_allclose(net.forward()["y"], expected, atol=1e-6)  # each batch begins with new sequences
    check_gradients(net_text(layer(bottoms), **shapes_of(given)), given)


@pytest.mark.parametrize("features", [(2, 3), (1, 1)])
def test_rows_of_steps(features):
    """x as (T, N, ...), and as (T N, I) with batch_size, are the same numbers."""
    x = values("x", features)["x"]
    text = layer(params=f"batch_size: {BATCH}")
    rows = run(text, x=x.reshape(STEPS * BATCH, -1))
    assert rows.blobs["y"].data.shape == (STEPS * BATCH, UNITS)
    expected = reference(x.reshape(STEPS, BATCH, -1), parameters(rows))
    np.testing.assert_allclose(rows.blobs["y"].data.reshape(STEPS, BATCH, UNITS), expected, atol=1e-6)
    np.testing.assert_allclose(run(layer(), x=x).blobs["y"].data, expected, atol=1e-6)
    check_gradients(net_text(text, x=(STEPS * BATCH, 2)), {"x": values("x")["x"].reshape(STEPS * BATCH, 2)})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_are_cut_off(precision):
    """The gradients of the gates' inputs are clipped. Those of the bias are sums of T N of them, each within the
    threshold."""
    x, found = values("x")["x"], {}
    for threshold in (0, 1e6, 0.01):
        text = net_text(layer(params=f"clipping_threshold: {threshold}"), x=x.shape)
        net = make_net(text, precision=precision)
        inputs(net)["x"].set(x)
        net.forward()
        set_top_diff(net, "y", np.full((STEPS, BATCH, UNITS), 5, np.float32))
        net.backward()
        found[threshold] = net.params["layer"][2].diff.get()
    np.testing.assert_array_equal(found[0], found[1e6])
    assert np.abs(found[0]).max() > 1 and 0.05 < np.abs(found[0.01]).max() <= 0.01 * STEPS * BATCH * 1.004


def test_errors():
    assert "num_output" in error_of(layer(units=0), x=(2, 3, 4))
    assert "batch_size" in error_of(layer(params="batch_size: 0"), x=(6, 4))
    assert "expected a bottom (T, N, I, ...), or (T N, I), got (6,)" in error_of(layer(), x=(6,))
    assert "of batch_size 4 sequences, got (6, 2)" in error_of(layer(params="batch_size: 4"), x=(6, 2))
    assert "clipping_threshold of at least 0" in error_of(layer(params="clipping_threshold: -1"), x=(2, 3, 4))
    wrong = error_of(layer("x cont"), x=(2, 3, 4), cont=(2, 4))
    assert "expected a second bottom of 2 x 3 values, got (2, 4)" in wrong
