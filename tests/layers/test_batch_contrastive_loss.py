import numpy as np
import pytest

from tests.layers.harness import error_of, run

RANDOM = np.random.default_rng(10)


def layer(params="", weight=1.5):
    return (
        f'layer {{ name: "layer" type: "BatchContrastiveLoss" bottom: "d" bottom: "t" top: "y" top: "means" '
        f"loss_weight: {weight} loss_weight: 0 batch_contrastive_loss_param {{ {params} }} }}"
    )


@pytest.mark.parametrize("max_only", ["false", "true"])
def test_formula(max_only):
    d, t = RANDOM.uniform(0, 2, (5, 5)), np.array([1, 0, 1, 0, 2])
    params = "positive_margin: 0.3 negative_margin: 1.5 positive_weight: 2 negative_weight: 0.5"
    net = run(layer(f"{params} max_only: {max_only}"), d=d, t=t)
    net.backward()
    above = np.triu(np.ones((5, 5), bool), 1)
    like, unlike = above & (t[:, None] == t), above & (t[:, None] != t)
    own, other = np.where(like, np.maximum(d - 0.3, 0), 0), np.where(unlike, np.maximum(1.5 - d, 0), 0)
    np.testing.assert_allclose(net.blobs["means"].data, [d[like].mean(), d[unlike].mean()], rtol=1e-5)
    if max_only == "true":
        loss = 2 * own.max() + 0.5 * other.max()
        slopes = (2 * (own == own.max()) - 0.5 * (other == other.max())) / 2
    else:
        loss = (2 * own.sum() + 0.5 * other.sum()) / 10
        slopes = (2 * (own > 0) - 0.5 * (other > 0)) / 5
    np.testing.assert_allclose(net.blobs["y"].data, loss, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["d"].diff, 1.5 * slopes, rtol=1e-5)


def test_one_sample_has_no_pair():
    net = run(layer(), d=np.ones((1, 1)), t=np.zeros(1))
    assert net.blobs["y"].data == 0 and not net.blobs["means"].data.any()


def test_errors():
    assert "expected distances (N, N) and N labels, got (4, 3) and (4,)" in error_of(layer(), d=(4, 3), t=(4,))
