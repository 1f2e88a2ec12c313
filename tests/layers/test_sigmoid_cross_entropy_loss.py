import numpy as np
import pytest

from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(4, 2, 3)).astype(np.float32)
TARGETS = RANDOM.integers(0, 2, X.shape).astype(np.float32)


def layer(params=""):
    return f'layer {{ name: "layer" type: "SigmoidCrossEntropyLoss" bottom: "x" bottom: "t" top: "y" {params} }}'


def reference(x, targets, divisor, ignore=None):
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    losses = -targets * np.log(s) - (1 - targets) * np.log(1 - s)
    return losses[targets != ignore].sum() / divisor


@golden("sigmoid_loss", "sigmoid_loss_ignore")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "params, divisor",
    [
        ("", 4),
        ("normalize: true", np.sum(TARGETS != 1)),
        ("normalize: false", 4),
        ("normalization: FULL", X.size),
        ("normalization: VALID", np.sum(TARGETS != 1)),
        ("normalization: NONE", 1),
        ("normalization: PRE_FIXED pre_fixed_normalizer: 2.5", 2.5),
    ],
)
def test_forward_and_gradients(params, divisor):
    text = layer(f"loss_param {{ ignore_label: 1 {params} }}")
    np.testing.assert_allclose(run(text, x=X, t=TARGETS).blobs["y"].data, reference(X, TARGETS, divisor, 1), rtol=1e-5)
    check_gradients(net_text(text, x=X.shape, t=X.shape), {"x": X, "t": TARGETS})


def test_soft_targets():
    targets = RANDOM.uniform(size=X.shape).astype(np.float32)
    np.testing.assert_allclose(run(layer(), x=X, t=targets).blobs["y"].data, reference(X, targets, 4), rtol=1e-5)
    check_gradients(net_text(layer("loss_weight: 3"), x=X.shape, t=X.shape), {"x": X, "t": targets})


def test_extreme_scores_stay_finite():
    net = run(layer(), x=np.array([[1e4], [-1e4]], np.float32), t=np.array([[1], [1]], np.float32))
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, 5e3, rtol=1e-6)
    np.testing.assert_allclose(net.blobs["x"].diff, [[0], [-0.5]])


def test_wrong_shapes():
    assert "expected as many targets as scores, (2, 3), got (2, 4)" in error_of(layer(), x=(2, 3), t=(2, 4))
