import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(11)


def layer(params="", loss="", kind="FocalLoss", top='top: "y"'):
    zero = "loss_weight: 0" * (top.count("top:") - 1)
    return (
        f'layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "t" {top} loss_weight: 1.5 {zero} '
        f"loss_param {{ {loss} }} focal_loss_param {{ {params} }} }}"
    )


def probabilities(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("kind", ["FocalLoss", "SoftmaxFocalLoss", "SoftmaxWithFocalLoss"])
@pytest.mark.parametrize(
    "params, weight",
    [
        ("alpha: 1", lambda p: (1 - p) ** 2),
        ("alpha: 0.25 gamma: 1.5", lambda p: 0.25 * (1 - p) ** 1.5),
        ("alpha: 1 gamma: 0", lambda p: np.ones_like(p)),
        ("type: ONEADDP", lambda p: (1 + p) ** 2),
        ("type: ONEADDP alpha: 1.2 gamma: 3", lambda p: (1.2 + p) ** 3),
    ],
)
def test_formula_and_gradients(params, weight, kind):
    x, t = RANDOM.normal(size=(4, 3, 2)), RANDOM.integers(0, 3, (4, 2))
    t[1, 0] = 7
    loss = "ignore_label: 7"
    net = run(layer(params, loss, kind, 'top: "y" top: "p"'), x=x, t=t)
    p = probabilities(x)
    np.testing.assert_allclose(net.blobs["p"].data, p, rtol=1e-5)
    own = np.take_along_axis(p, (t % 7)[:, None], 1)[:, 0]
    expected = -(weight(own) * np.log(own))[t != 7].sum() / 7
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(layer(params, loss, kind), x=x.shape, t=t.shape), {"x": x, "t": t})


@pytest.mark.parametrize("kind, alpha", [("FocalLoss", 1), ("SoftmaxFocalLoss", 0.25), ("SoftmaxWithFocalLoss", 0.25)])
def test_default_alpha(kind, alpha):
    """Forks have these types with different defaults of alpha."""
    x, t = RANDOM.normal(size=(4, 3)), RANDOM.integers(0, 3, 4)
    found, expected = (run(layer(params, kind=kind), x=x, t=t).blobs["y"].data for params in ("", f"alpha: {alpha}"))
    assert found == expected


def test_gamma_0_is_softmax_with_loss():
    x, t = RANDOM.normal(size=(4, 3)), RANDOM.integers(0, 3, 4)
    ours = run(layer("gamma: 0"), x=x, t=t)
    plain = run(layer(kind="SoftmaxWithLoss").replace("focal_loss_param {  }", ""), x=x, t=t)
    for net in (ours, plain):
        net.backward()
    np.testing.assert_allclose(ours.blobs["y"].data, plain.blobs["y"].data, rtol=1e-6)
    np.testing.assert_allclose(ours.blobs["x"].diff, plain.blobs["x"].diff, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("gamma", [0.5, 2])
def test_certain_scores_stay_finite(gamma):
    net = run(layer(f"gamma: {gamma}"), x=np.array([[200.0, 0], [0, 200]]), t=np.array([0, 0]))
    net.backward()
    assert np.isfinite(net.blobs["y"].data) and np.isfinite(net.blobs["x"].diff).all()


def test_errors():
    assert "expected type ORIGIN or ONEADDP, got LINEAR" in error_of(layer("type: LINEAR"), x=(4, 3), t=(4,))
    assert "expected alpha above 0 and gamma of at least 0, got 0 and 2" in error_of(
        layer("alpha: 0"), x=(4, 3), t=(4,)
    )
    assert "expected 4 labels, one for each position" in error_of(layer(), x=(4, 3), t=(4, 2))
    with pytest.raises(DataError, match="label 3 at position 0 is outside"):
        run(layer(), x=np.ones((1, 3)), t=np.array([3]))
