import numpy as np

from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

LAYER = 'layer { name: "layer" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "y" loss_weight: 1.5 }'
RANDOM = np.random.default_rng(4)
A, B = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)


@golden("euclidean_loss")
def test_golden(case):
    check_golden(case)


def test_forward_and_gradients_of_both_bottoms():
    net = run(LAYER, a=A, b=B)
    np.testing.assert_allclose(net.blobs["y"].data, np.sum((A - B) ** 2, dtype=np.float64) / 2 / 3, rtol=1e-5)
    check_gradients(net_text(LAYER, a=A.shape, b=B.shape), {"a": A, "b": B})


def test_bottoms_of_other_shapes_but_the_same_count():
    net = run(LAYER, a=A, b=B.reshape(3, 20))
    np.testing.assert_allclose(net.blobs["y"].data, np.sum((A - B) ** 2, dtype=np.float64) / 2 / 3, rtol=1e-5)


def test_wrong_shapes():
    assert "expected bottoms of the same count, got (2, 3) and (2, 4)" in error_of(LAYER, a=(2, 3), b=(2, 4))
    assert "expected bottoms with the same first axis, got (2, 6) and (3, 4)" in error_of(LAYER, a=(2, 6), b=(3, 4))
