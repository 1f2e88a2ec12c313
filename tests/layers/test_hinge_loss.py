import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(11)


def layer(norm="L1"):
    return (
        'layer { name: "layer" type: "HingeLoss" bottom: "x" bottom: "l" top: "y" loss_weight: 1.5 '
        f"hinge_loss_param {{ norm: {norm} }} }}"
    )


@golden("hinge_loss", "hinge_loss_l2")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("norm, power", [("L1", 1), ("L2", 2)])
@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 2, 1), (2, 70)])
def test_forward_and_gradients(norm, power, shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    x[np.abs(np.abs(x) - 1) < 0.05] = 0.5  # away from the kinks
    labels = RANDOM.integers(0, x[0].size, shape[0]).astype(np.float32)
    sides = np.where(np.arange(x[0].size) == labels[:, None], 1, -1)
    margins = np.maximum(0, 1 - sides * x.reshape(shape[0], -1).astype(np.float64))
    loss = run(layer(norm), x=x, l=labels).blobs["y"].data
    np.testing.assert_allclose(loss, (margins**power).sum() / shape[0], rtol=1e-5)
    check_gradients(net_text(layer(norm), x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_errors():
    assert "expected 4 labels, one for each sample of (4, 3), got (4, 2)" in error_of(layer(), x=(4, 3), l=(4, 2))
    assert "same first axis" in error_of(layer(), x=(4, 3), l=(2,))
    with pytest.raises(DataError, match=r"layer 'layer': label 3 at position 1 is outside \[0, 3\)"):
        run(layer(), x=np.zeros((2, 3), np.float32), l=np.array([0, 3], np.float32))
