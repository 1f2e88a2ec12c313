import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(15)
NAMES = "abio"  # predictions, targets, inside and outside weights


def layer(bottoms=2, sigma=1.0):
    names = " ".join(f'bottom: "{name}"' for name in NAMES[:bottoms])
    return (
        f'layer {{ name: "layer" type: "SmoothL1Loss" {names} top: "y" loss_weight: 1.5 '
        f"smooth_l1_loss_param {{ sigma: {sigma} }} }}"
    )


def reference(a, b, inside=1.0, outside=1.0, sigma=1.0):
    d = inside * (a - b).astype(np.float64)
    near = np.abs(d) < 1 / sigma**2
    return (outside * np.where(near, (sigma * d) ** 2 / 2, np.abs(d) - 0.5 / sigma**2)).sum() / a.shape[0]


@pytest.mark.parametrize("bottoms", [2, 3, 4])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_forward_and_gradients(bottoms, sigma):
    a, b = RANDOM.normal(size=(2, 3, 4, 2, 5)).astype(np.float32)
    inside = RANDOM.integers(0, 3, a.shape).astype(np.float32)
    outside = RANDOM.uniform(0, 2, a.shape).astype(np.float32)
    values = dict(zip(NAMES, (a, b, inside, outside)[:bottoms], strict=False))
    loss = run(layer(bottoms, sigma), **values).blobs["y"].data
    np.testing.assert_allclose(loss, reference(*values.values(), sigma=sigma), rtol=1e-5)
    shapes = dict.fromkeys(values, a.shape)
    check_gradients(net_text(layer(bottoms, sigma), **shapes), values, step=2e-3, tolerance=1e-2)


def test_both_sides_of_the_bend():
    a, b = np.array([[0.5, 2, -3, -0.2]], np.float32), np.zeros((1, 4), np.float32)
    net = run(layer(), a=a, b=b)
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, 0.125 + 1.5 + 2.5 + 0.02)
    np.testing.assert_allclose(net.blobs["a"].diff, 1.5 * np.array([[0.5, 1, -1, -0.2]]), rtol=1e-6)
    np.testing.assert_allclose(net.blobs["b"].diff, -net.blobs["a"].diff)


def test_errors():
    shape = (2, 3)
    assert "expected bottoms of the same count, got (2, 3) and (2, 4)" in error_of(layer(), a=shape, b=(2, 4))
    assert "expected weights of the same count as the predictions, (2, 3), got (2, 1)" in error_of(
        layer(4), a=shape, b=shape, i=shape, o=(2, 1)
    )
    assert "expected sigma above 0, got 0" in error_of(layer(sigma=0), a=shape, b=shape)
