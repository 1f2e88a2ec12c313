import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_gradients, error_of, net_text, run

LAYER = 'layer { name: "layer" type: "DiceLoss" bottom: "p" bottom: "g" top: "y" loss_weight: 1.5 }'
RANDOM = np.random.default_rng(27)


def reference(p, g):
    """Computes the loss of values and truth, both (N, classes, ...)."""
    p, g = (each.reshape(*each.shape[:2], -1).astype(np.float64) for each in (p, g))
    return (1 - (2 * (p * g).sum(2) + 1e-5) / ((p**2).sum(2) + (g**2).sum(2) + 1e-5)).mean()


def test_targets():
    p = RANDOM.uniform(0, 1, (3, 2, 4, 5)).astype(np.float32)
    g = RANDOM.uniform(0, 1, p.shape).astype(np.float32)
    expected = reference(p.reshape(3, 1, -1), g.reshape(3, 1, -1))
    np.testing.assert_allclose(run(LAYER, p=p, g=g).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(LAYER, p=p.shape, g=g.shape), {"p": p, "g": g}, tolerance=5e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_labels(classes):
    p = RANDOM.uniform(0, 1, (3, classes, 4, 5)).astype(np.float32)
    labels = RANDOM.integers(0, classes, (3, 4, 5)).astype(np.float32)
    truth = labels[:, None] == np.arange(1, classes).reshape(1, -1, 1, 1)
    net = run(LAYER, p=p, g=labels)
    np.testing.assert_allclose(net.blobs["y"].data, reference(p[:, 1:], truth), rtol=1e-5)
    net.backward()
    assert np.abs(net.blobs["p"].diff[:, 1:]).max() > 1e-3 and not net.blobs["p"].diff[:, 0].any()
    check_gradients(net_text(LAYER, p=p.shape, g=labels.shape), {"p": p, "g": labels}, tolerance=5e-4)


@pytest.mark.parametrize("found, loss", [(0, 0), (1, 1)])
def test_nothing_there(found, loss):
    net = run(LAYER, p=np.full((1, 2, 3, 3), found, np.float32), g=np.zeros((1, 3, 3), np.float32))
    np.testing.assert_allclose(net.blobs["y"].data, loss, atol=1e-5)
    net.backward()
    assert np.isfinite(net.blobs["p"].diff).all()


def test_errors():
    assert "expected as many targets as (2, 3, 4), or a label for each position, got (2, 5)" in error_of(
        LAYER, p=(2, 3, 4), g=(2, 5)
    )
    assert "expected probabilities of at least 2 axes (N, C), got (4,)" in error_of(LAYER, p=(4,), g=(4,))
    with pytest.raises(DataError, match=r"layer 'layer': label 2 at position 1 is outside \[0, 2\)"):
        run(LAYER, p=np.ones((1, 2, 3), np.float32), g=np.array([[0, 2, 1]], np.float32))
