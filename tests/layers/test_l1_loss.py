import numpy as np
import pytest

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


def flownets(params, bottoms=("a", "b")):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "layer" type: "L1Loss" {names} top: "y" loss_weight: 1.5 l1_loss_param {{ {params} }} }}'


def of_flownet(gap, squares=False, scale=1.0, by_entries=False, plateau=0.0, epsilon=0.01):
    divisor = (~np.isnan(gap)).sum() / gap.shape[1] if by_entries else len(gap)
    size = np.abs(np.nan_to_num(gap))
    if not squares:
        return np.where(size < plateau, 0, size).sum() / divisor
    sums = scale * (size**2).sum(1)
    return np.sqrt(np.where(sums < plateau**2, 0, sums) + epsilon).sum() / divisor


@pytest.mark.parametrize(
    "params, options",
    [
        ("", {}),
        ("plateau: 0.5", {"plateau": 0.5}),
        ("l2_per_location: true", {}),
        ("l2_per_location: true l2_prescale_by_channels: true epsilon: 0.1", {"scale": 0.5, "epsilon": 0.1}),
        ("l2_per_location: true plateau: 1 normalize_by_num_entries: true", {"plateau": 1, "by_entries": True}),
    ],
)
def test_flownets(params, options):
    options = {**options, "squares": "l2_per_location" in params}
    a, b = RANDOM.normal(size=(2, 3, 2, 4, 5))
    gap = a - b
    away = (np.abs(gap) < 0.05) | (np.abs(np.abs(gap) - 0.5) < 0.05)
    a[away] += 0.2
    if options.get("squares") and "plateau" in options:
        a[np.broadcast_to(np.abs(np.sqrt(((a - b) ** 2).sum(1, keepdims=True)) - 1) < 0.1, a.shape)] += 0.4
    net = run(flownets(params), a=a, b=b)
    np.testing.assert_allclose(net.blobs["y"].data, of_flownet(a - b, **options), rtol=1e-5)
    check_gradients(net_text(flownets(params), a=a.shape, b=b.shape), {"a": a, "b": b}, step=5e-3, tolerance=5e-3)
    a[0, 1, 2] = np.nan
    net = run(flownets(params, ["a"]), a=a)
    np.testing.assert_allclose(net.blobs["y"].data, of_flownet(a, **options), rtol=1e-5)
    net.backward()
    assert not net.blobs["a"].diff[0, 1, 2].any() and np.isfinite(net.blobs["a"].diff).all()
