import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

LAYER = 'layer { name: "layer" type: "MultinomialLogisticLoss" bottom: "x" bottom: "l" top: "y" loss_weight: 1.5 }'
RANDOM = np.random.default_rng(12)


@golden("multinomial_loss")
def test_golden(case):
    check_golden(case)


def test_forward_and_gradients():
    x = RANDOM.uniform(0.2, 1, (5, 4)).astype(np.float32)
    labels = RANDOM.integers(0, 4, 5).astype(np.float32)
    loss = -np.log(x[np.arange(5), labels.astype(int)].astype(np.float64)).mean()
    np.testing.assert_allclose(run(LAYER, x=x, l=labels).blobs["y"].data, loss, rtol=1e-5)
    check_gradients(net_text(LAYER, x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_a_probability_of_zero():
    """As in Caffe, it counts as 1e-20."""
    net = run(LAYER, x=np.array([[0, 1]], np.float32), l=np.zeros(1, np.float32))
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, -np.log(1e-20), rtol=1e-5)
    np.testing.assert_allclose(net.blobs["x"].diff, [[-1.5e20, 0]], rtol=1e-5)


def test_errors():
    assert "expected 4 labels, one for each sample of (4, 3), got (4, 2)" in error_of(LAYER, x=(4, 3), l=(4, 2))
    with pytest.raises(DataError, match=r"layer 'layer': label -1 at position 0 is outside \[0, 3\)"):
        run(LAYER, x=np.ones((1, 3), np.float32), l=np.array([-1], np.float32))
