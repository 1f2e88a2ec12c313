import numpy as np
import pytest

from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(13)


def layer(legacy="false"):
    return (
        'layer { name: "layer" type: "ContrastiveLoss" bottom: "a" bottom: "b" bottom: "s" top: "y" loss_weight: 1.5 '
        f"contrastive_loss_param {{ margin: 2 legacy_version: {legacy} }} }}"
    )


@golden("contrastive_loss")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("legacy", ["false", "true"])
@pytest.mark.parametrize("shape", [(6, 4), (6, 2, 2, 1)])
def test_forward_and_gradients(legacy, shape):
    a = RANDOM.normal(size=shape).astype(np.float32)
    # Distances are about 0.5, 1 and 3: within the margin and beyond, for equal and different labels.
    steps = RANDOM.normal(size=shape).astype(np.float32).reshape(6, -1)
    steps *= (np.array([0.5, 1, 3, 0.5, 1, 3]) / np.linalg.norm(steps, axis=1))[:, None]
    b = a + steps.reshape(shape).astype(np.float32)
    alike = np.array([1, 1, 1, 0, 0, 0], np.float32)
    squares = ((a - b).astype(np.float64) ** 2).reshape(6, -1).sum(1)
    apart = np.maximum(2 - squares, 0) if legacy == "true" else np.maximum(2 - np.sqrt(squares), 0) ** 2
    loss = np.where(alike, squares, apart).sum() / 2 / 6
    np.testing.assert_allclose(run(layer(legacy), a=a, b=b, s=alike).blobs["y"].data, loss, rtol=1e-5)
    check_gradients(net_text(layer(legacy), a=shape, b=shape, s=(6,)), {"a": a, "b": b, "s": alike})


def test_labels_of_both():
    """In happynear's fork there are two labels, and pairs with equal labels are alike. The margin is that of the legacy
    version."""
    a, b = RANDOM.normal(size=(2, 6, 4)).astype(np.float32)
    first, second = np.array([0, 1, 2, 3, 3, 5], np.float32), np.array([0, 1, 1, 3, 4, 6], np.float32)
    squares = ((a - b).astype(np.float64) ** 2).sum(1)
    margin = float(np.median(squares[first != second])) + 0.05  # some are apart by more, some by less
    text = layer().replace('bottom: "s"', 'bottom: "s" bottom: "t"').replace("margin: 2", f"margin: {margin}")
    loss = np.where(first == second, squares, np.maximum(margin - squares, 0)).sum() / 2 / 6
    given = {"a": a, "b": b, "s": first, "t": second}
    np.testing.assert_allclose(run(text, **given).blobs["y"].data, loss, rtol=1e-5)
    check_gradients(net_text(text, a=(6, 4), b=(6, 4), s=(6,), t=(6,)), given)
    wrong = error_of(text, a=(6, 4), b=(6, 4), s=(6,), t=(5,))
    assert "expected a fourth bottom of 6 values, one for each pair, got (5,)" in wrong


def test_the_same_blob_twice():
    x = RANDOM.normal(size=(2, 3)).astype(np.float32)
    net = run(layer(), a=x, b=x, s=np.array([0, 1], np.float32))
    net.backward()
    assert net.blobs["y"].data == 1 and not net.blobs["a"].diff.any()  # margin^2 / 2N, and no direction to go


def test_errors():
    shapes = {"a": (2, 3), "b": (2, 3), "s": (2,)}
    assert "got 2" in error_of(layer().replace('bottom: "s"', ""), a=(2, 3), b=(2, 3))
    assert "expected bottoms of the same count, got (2, 3) and (2, 4)" in error_of(layer(), **{**shapes, "b": (2, 4)})
    assert "expected a third bottom of 2 values, one for each pair, got (3,)" in error_of(
        layer(), **{**shapes, "s": (3,)}
    )
