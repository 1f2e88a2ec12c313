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


def test_losses_of_targets_that_are_nearly_met_keep_their_digits():
    x = np.linspace(5, 60, 45, dtype=np.float32)
    for least in (5, 20, 50):
        scores = x[x > least].reshape(1, -1)
        loss = run(layer(), x=scores, t=np.ones_like(scores)).blobs["y"].data
        np.testing.assert_allclose(loss, np.log1p(np.exp(-scores.astype(np.float64))).sum(), rtol=1e-5)


def weighted(x, targets, positive, negative, divisor):
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    p, n = (np.reshape(weights, (1, -1, 1)) for weights in (positive, negative))
    losses = -p * targets * np.log(s) - n * (1 - targets) * np.log(1 - s)
    return losses[targets >= 0].sum() / divisor


@pytest.mark.parametrize(
    "params, positive, negative",
    [
        ("positive_weight: 0.9 positive_weight: 0.2 negative_weight: 0.1 negative_weight: 3", [0.9, 0.2], [0.1, 3]),
        ("positive_weight: 5", 5, 1),
        ("negative_weight: 0", 1, 0),
    ],
)
def test_weights_of_labels(params, positive, negative):
    """Weights belong to places on the second axis, also with soft targets. They do not change what the sum is divided
    by."""
    targets = RANDOM.uniform(size=X.shape).astype(np.float32)
    targets[0], targets[1, 1, 2] = TARGETS[0], -1
    text = layer(f"loss_weight: 2 loss_param {{ ignore_label: -1 normalization: VALID {params} }}")
    loss = run(text, x=X, t=targets).blobs["y"].data
    np.testing.assert_allclose(loss, weighted(X, targets, positive, negative, X.size - 1), rtol=1e-5)
    check_gradients(net_text(text, x=X.shape, t=X.shape), {"x": X, "t": targets})


def test_extreme_scores_stay_finite_with_weights():
    text = layer("loss_param { positive_weight: 4 negative_weight: 2 }")
    net = run(text, x=np.array([[1e4], [-1e4]], np.float32), t=np.array([[0], [1]], np.float32))
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, (2e4 + 4e4) / 2, rtol=1e-6)
    np.testing.assert_allclose(net.blobs["x"].diff, [[1], [-2]])


@pytest.mark.parametrize(
    "params, said",
    [
        ("positive_weight: [1, 2]", "a positive_weight for all labels or one for each of 3, got 2"),
        ("negative_weight: -1", "each negative_weight to be 0 or more, got -1"),
        ("positive_weight: inf", "'positive_weight' expects a finite number, got inf"),
    ],
)
def test_wrong_weights(params, said):
    assert said in error_of(layer(f"loss_param {{ {params} }}"), x=(2, 3), t=(2, 3))


@pytest.mark.parametrize("type, targets", [("SoftmaxWithLoss", (2,)), ("EuclideanLoss", (2, 3))])
def test_other_losses_refuse_weights_of_labels(type, targets):
    text = layer("loss_param { positive_weight: 2 }").replace("SigmoidCrossEntropyLoss", type)
    message = "positive_weight is for SigmoidCrossEntropyLoss; take it out of loss_param"
    assert message in error_of(text, x=(2, 3), t=targets)


def test_extreme_scores_stay_finite():
    net = run(layer(), x=np.array([[1e4], [-1e4]], np.float32), t=np.array([[1], [1]], np.float32))
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, 5e3, rtol=1e-6)
    np.testing.assert_allclose(net.blobs["x"].diff, [[0], [-0.5]])


def test_wrong_shapes():
    assert "expected as many targets as scores, (2, 3), got (2, 4)" in error_of(layer(), x=(2, 3), t=(2, 4))
