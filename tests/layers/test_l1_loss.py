import numpy as np

from tests.layers.harness import check_gradients, error_of, net_text, run

LAYER = 'layer { name: "layer" type: "L1Loss" bottom: "a" bottom: "b" top: "y" loss_weight: 1.5 }'
RANDOM = np.random.default_rng(14)


def test_forward_and_gradients_of_both_bottoms():
    a, b = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    b[np.abs(a - b) < 0.05] += 0.2  # away from the kink
    net = run(LAYER, a=a, b=b)
    np.testing.assert_allclose(net.blobs["y"].data, np.abs(a - b).sum(dtype=np.float64) / 3, rtol=1e-5)
    check_gradients(net_text(LAYER, a=a.shape, b=b.shape), {"a": a, "b": b})


def test_no_gradient_where_nothing_differs():
    x = RANDOM.normal(size=(2, 3)).astype(np.float32)
    net = run(LAYER, a=x, b=x)
    net.backward()
    assert net.blobs["y"].data == 0 and not net.blobs["a"].diff.any()


def test_wrong_shapes():
    assert "expected bottoms of the same count, got (2, 3) and (2, 4)" in error_of(LAYER, a=(2, 3), b=(2, 4))
