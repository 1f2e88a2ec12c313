import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

SCORES = np.random.default_rng(3).normal(scale=3, size=(5, 1, 2, 3)).astype(np.float32)


def layer(loss: str, bottoms: str = 'bottom: "s"') -> str:
    return (
        f'layer {{ name: "layer" type: "AdversarialLoss" {bottoms} top: "y" loss_weight: 1.5 '
        f"adversarial_loss_param {{ loss: {loss} }} }}"
    )


def reference(loss: str, s: np.ndarray, real: float) -> float:
    s = s.astype(np.float64)
    if loss == "NON_SATURATING":
        said = 1 / (1 + np.exp(-s))
        return float(-np.mean(real * np.log(said) + (1 - real) * np.log(1 - said)))
    return float(np.mean((s - real) ** 2) / 2 if loss == "LEAST_SQUARES" else np.mean(np.where(real, -s, s)))


@pytest.mark.parametrize("loss", ["NON_SATURATING", "LEAST_SQUARES", "WASSERSTEIN"])
@pytest.mark.parametrize("real", [None, 0, 1])
def test_losses_and_gradients(loss, real):
    fed = {"s": SCORES} if real is None else {"s": SCORES, "r": np.full(1, real, np.float32)}
    text = layer(loss, " ".join(f'bottom: "{name}"' for name in fed))
    net = run(text, s=SCORES) if real is None else run(text, s=SCORES, r=fed["r"])
    wanted = reference(loss, SCORES, 1 if real is None else real)
    np.testing.assert_allclose(net.blobs["y"].data, wanted, rtol=1e-5)
    check_gradients(net_text(text, **{name: values.shape for name, values in fed.items()}), fed, ignore=["r"])


def test_large_scores_neither_overflow_nor_lose_their_gradient():
    scores = np.array([[200], [-200]], np.float32)
    net = run(layer("NON_SATURATING"), s=scores)
    np.testing.assert_allclose(net.blobs["y"].data, 100)


def test_wrong_shapes():
    both = 'bottom: "s" bottom: "r"'
    assert "expected one value in the second bottom, got (5,)" in error_of(layer("WASSERSTEIN", both), s=(5, 1), r=(5,))
