import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(1)


def layer(param="", bottom="x"):
    return f'layer {{ name: "layer" type: "Crop" bottom: "{bottom}" bottom: "r" top: "y" crop_param {{ {param} }} }}'


@golden("crop")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, window, param, expected",
    [
        ((5, 6), (2, 3), "axis: 0 offset: 1", np.s_[1:3, 1:4]),
        ((5, 6), (2, 3), "axis: 1 offset: 3", np.s_[:, 3:6]),
        ((2, 3, 5, 6), (7, 7, 2, 4), "", np.s_[:, :, :2, :4]),
        ((2, 3, 5, 6), (7, 7, 2, 4), "offset: 2", np.s_[:, :, 2:4, 2:6]),
        ((2, 3, 5, 6), (7, 2, 2, 4), "axis: 1 offset: 1 offset: 3 offset: 0", np.s_[:, 1:3, 3:5, :4]),
        ((2, 3, 5, 6), (7, 7, 7, 4), "axis: -1 offset: 1", np.s_[..., 1:5]),
        ((2, 3, 5, 6), (7, 7, 5, 6), "", np.s_[:]),
    ],
)
def test_forward_and_gradients(shape, window, param, expected):
    x = RANDOM.normal(size=shape).astype(np.float32)
    y = run(layer(param), x=x, r=np.zeros(window, np.float32)).blobs["y"].data
    np.testing.assert_array_equal(y, x[expected])
    check_gradients(net_text(layer(param), x=shape, r=window), {"x": x, "r": np.zeros(window)})


@pytest.mark.parametrize("channels", [32, 40])
@pytest.mark.parametrize("axis", [2, 1, 0])
def test_blocked(channels, axis):
    window = np.zeros((1, 17, 3, 2), np.float32)
    net = run_blocked(layer(f"axis: {axis} offset: 1", "c"), plain={"r": window}, c=channels)
    begin = [0] * axis + [1] * (4 - axis)
    slices = tuple(np.s_[i : i + n] if i else np.s_[:] for i, n in zip(begin, window.shape, strict=True))
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal(y.data, c.data[slices])
    assert y.tensor.is_plain == (axis < 2)
    expected = np.zeros_like(c.data)
    expected[slices] = y.diff
    np.testing.assert_array_equal(c.diff, expected)


def test_errors():
    shapes = {"x": (2, 3, 5, 6), "r": (2, 3, 4, 5)}
    assert "layer 'layer' (Crop): expected a window within (2, 3, 5, 6), got 4 from 2 on along axis 2" in error_of(
        layer("offset: 2"), **shapes
    )
    assert "expected offset once, or once for each of the 2 axes from 2 on, got [0, 0, 0]" in error_of(
        layer("offset: 0 offset: 0 offset: 0"), **shapes
    )
    assert "expected two bottoms of as many axes" in error_of(layer(), x=(2, 3, 4, 5), r=(2, 3))
    assert "axis 2 is out of range" in error_of(layer(), x=(2, 3), r=(2, 3))
