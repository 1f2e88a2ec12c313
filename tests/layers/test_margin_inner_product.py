import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(3)
TYPES = ["SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE"]
PARAMS = {
    "MarginInnerProduct": "margin_inner_product_param",
    "LargeMarginInnerProduct": "largemargin_inner_product_param",
}
SCHEDULE = "base: 7 gamma: 0.3 power: 1.5 lambda_min: 2 iteration: 4"


def layer(kind, params, top='top: "y"'):
    filler = 'weight_filler { type: "gaussian" std: 0.5 }'
    return (
        f'layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "t" {top} '
        f"{PARAMS[kind]} {{ num_output: 5 {filler} {params} }} }}"
    )


def sample(size=6):
    """Returns samples whose angles to the weights of their classes are of all sizes."""
    w, t = RANDOM.normal(size=(5, size)), RANDOM.integers(0, 5, 24)
    angles, lengths = np.linspace(0.1, 3.05, 24), RANDOM.uniform(0.5, 2, 24)
    own = w[t] / np.linalg.norm(w[t], axis=1, keepdims=True)
    across = RANDOM.normal(size=(24, size))
    across -= (across * own).sum(1, keepdims=True) * own
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    x = np.cos(angles)[:, None] * own + np.sin(angles)[:, None] * across
    return lengths[:, None] * x, t, w


def psi(m, angle):
    k = np.floor(angle * m / np.pi)
    return (-1) ** k * np.cos(m * angle) - 2 * k


def reference(x, t, w, m, lambda_, unit):
    """Returns the scores, and the cosines of the own classes."""
    if unit:
        w = w / np.linalg.norm(w, axis=1, keepdims=True)
    y = x @ w.T
    rows = np.arange(len(x))
    both = np.linalg.norm(x, axis=1) * np.linalg.norm(w, axis=1)[t]
    cosine = y[rows, t] / both
    y[rows, t] = (both * psi(m, np.arccos(cosine)) + lambda_ * y[rows, t]) / (1 + lambda_)
    return y, cosine, w


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_forward(kind, margin):
    x, t, w = sample()
    text = layer(kind, f"type: {TYPES[margin - 1]} base: 0.5 lambda_min: 0.25", 'top: "y" top: "lambda"')
    net = make_net(net_text(text, x=x.shape, t=t.shape))
    net.params["layer"][0].set(w.astype(np.float32))
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(t)
    net.forward()
    expected, _, unit = reference(x, t, w, margin, 0.5, kind == "MarginInnerProduct")
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    assert net.blobs["lambda"].data.tolist() == [0.5]
    stays = unit if kind == "MarginInnerProduct" else w
    np.testing.assert_allclose(net.params["layer"][0].get(), stays, rtol=1e-5, atol=1e-6)


def test_the_schedule_of_lambda():
    x, t, _ = sample()
    text = layer("MarginInnerProduct", f"type: QUADRUPLE {SCHEDULE}", 'top: "y" top: "lambda"')
    net = run(text, x=x, t=t)
    found = []
    for iteration in (0, 3, 1000):
        net.forward((iteration, 0, None))
        found.append(float(net.blobs["lambda"].data[0]))
    decayed = [7 * (1 + 0.3 * (4 + i + 1)) ** -1.5 for i in (0, 3, 1000)]
    assert decayed[0] > 0 and decayed[2] < 2
    np.testing.assert_allclose(found, np.maximum(decayed, 2), rtol=1e-5)
    low = layer("MarginInnerProduct", f"type: QUADRUPLE {SCHEDULE}".replace("lambda_min: 2", ""), 'top: "y" top: "l"')
    net = run(low, x=x, t=t)
    net.forward((3, 0, None))
    np.testing.assert_allclose(net.blobs["l"].data, decayed[1], rtol=1e-5)


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_gradients_of_l_softmax(margin):
    """They are the derivatives of the formula, except where two of its pieces meet."""
    x, t, w = sample()
    _, cosine, _ = reference(x, t, w, margin, 0, False)
    part = np.arccos(cosine) * margin / np.pi
    keep = np.abs(part - np.round(part)) > 0.15
    x, t = x[keep], t[keep]
    assert len(x) >= 6 and len(np.unique(np.floor(part[keep]))) == margin
    text = net_text(layer("LargeMarginInnerProduct", f"type: {TYPES[margin - 1]} base: 0.5"), x=x.shape, t=t.shape)
    check_gradients(text, {"x": x, "t": t}, params={"layer": [w]}, step=2e-3, tolerance=5e-3)


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_gradients_of_a_softmax_are_sphereface_s(margin):
    x, t, w = sample()
    lambda_ = 0.5
    net = make_net(net_text(layer("MarginInnerProduct", f"type: {TYPES[margin - 1]} base: 0.5"), x=x.shape, t=t.shape))
    net.params["layer"][0].set(w.astype(np.float32))
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(t)
    net.forward()
    given = RANDOM.normal(size=(len(x), 5))
    set_top_diff(net, "y", given)
    net.backward()
    np.testing.assert_allclose(net.params["layer"][0].diff.get(), given.T @ x, rtol=1e-4, atol=1e-4)
    _, cosine, unit = reference(x, t, w, margin, lambda_, True)
    expected = given @ unit
    length = np.linalg.norm(x, axis=1)
    for i in range(len(x)) if margin > 1 else ():
        slope = (psi(margin, np.arccos(cosine[i] + 1e-6)) - psi(margin, np.arccos(cosine[i] - 1e-6))) / 2e-6
        a, b = slope, (psi(margin, np.arccos(cosine[i])) - cosine[i] * slope) / length[i]
        own = ((a * unit[t[i]] + b * x[i]) / np.hypot(a, b) + lambda_ * unit[t[i]]) / (1 + lambda_)
        expected[i] += given[i, t[i]] * (own - unit[t[i]])
    np.testing.assert_allclose(net.blobs["x"].diff, expected, rtol=2e-3, atol=2e-3)


def test_gradients_through_unit_weights_without_a_margin():
    x, t, w = sample()
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    fixed = layer("MarginInnerProduct", "").replace('bottom: "x"', 'param { lr_mult: 0 } bottom: "x"')
    text = net_text(fixed, x=x.shape, t=t.shape)
    check_gradients(text, {"x": x, "t": t}, params={"layer": [unit]})


def test_axis_and_zeros():
    """A sample of zeros has no angle, but no value becomes infinite."""
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    x[1, 2] = 0
    net = run(layer("MarginInnerProduct", "type: QUADRUPLE base: 1 axis: 2"), x=x, t=np.zeros(6))
    assert net.blobs["y"].shape == (2, 3, 5)
    set_top_diff(net, "y", np.ones((2, 3, 5)))
    net.backward()
    assert np.isfinite(net.blobs["x"].diff).all() and np.isfinite(net.blobs["y"].data).all()


def test_errors():
    kind = "MarginInnerProduct"
    assert "expected num_output above 0, got 0" in error_of(
        layer(kind, "").replace("num_output: 5", ""), x=(4, 3), t=(4,)
    )
    assert "expected 4 labels, one for each sample of (4, 3), got (5,)" in error_of(layer(kind, ""), x=(4, 3), t=(5,))
    assert "expected gamma and iteration of at least 0, got -1 and 0" in error_of(
        layer(kind, "gamma: -1"), x=(4, 3), t=(4,)
    )
    with pytest.raises(DataError, match="label 5 at position 1 is outside"):
        run(layer(kind, ""), x=np.ones((2, 3)), t=np.array([0, 5]))
