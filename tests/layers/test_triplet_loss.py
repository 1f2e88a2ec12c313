import numpy as np

from tests.layers.harness import check_gradients, error_of, net_text, run

LAYER = """layer { name: "layer" type: "TripletLoss" bottom: "a" bottom: "p" bottom: "n" top: "y" loss_weight: 1.5
    triplet_loss_param { margin: 0.7 } }"""


def test_formula_and_gradients():
    a, p, n = np.random.default_rng(8).normal(size=(3, 8, 3))
    gaps = 0.7 + ((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1)
    assert (gaps > 0.1).any() and (gaps < -0.1).any() and np.abs(gaps).min() > 0.05
    net = run(LAYER, a=a, p=p, n=n)
    np.testing.assert_allclose(net.blobs["y"].data, np.maximum(gaps, 0).sum() / 16, rtol=1e-5)
    check_gradients(net_text(LAYER, a=a.shape, p=p.shape, n=n.shape), {"a": a, "p": p, "n": n}, step=2e-3)


def test_wrong_shapes():
    assert "expected three bottoms of one shape (N, ...), got [(2, 3), (2, 3), (2, 4)]" in error_of(
        LAYER, a=(2, 3), p=(2, 3), n=(2, 4)
    )
