import numpy as np
import pytest

from tests.layers.blocked import CONVOLUTION, run_blocked
from tests.layers.harness import (
    BLOCK,
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    net_text,
    set_top_diff,
)

RANDOM = np.random.default_rng(1)


def layer(param="", bottom="x", tops=2):
    names = " ".join(f'top: "y{i}"' for i in range(tops))
    return f'layer {{ name: "layer" type: "Slice" bottom: "{bottom}" {names} slice_param {{ {param} }} }}'


def check_against_reference(net, tops, axis=1):
    parts = [net.blobs[f"y{i}"] for i in range(tops)]
    np.testing.assert_array_equal(net.blobs["c"].data, np.concatenate([part.data for part in parts], axis))
    np.testing.assert_array_equal(net.blobs["c"].diff, np.concatenate([part.diff for part in parts], axis))


@golden("slice", "slice_even")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, param",
    [
        ((2, 6), ""),
        ((2, 6), "slice_point: 5"),
        ((4, 3), "axis: 0"),
        ((4, 3), "slice_dim: 0"),
        ((2, 3, 4, 5), "axis: -1 slice_point: 2"),
    ],
)
def test_gradients(shape, param):
    check_gradients(net_text(layer(param), x=shape), {"x": RANDOM.normal(size=shape)})


@pytest.mark.parametrize(
    "channels, points", [(64, [32]), (64, [16, 48]), (40, [16, 32]), (40, [32]), (64, [8, 32]), (40, [20])]
)
def test_blocked(channels, points):
    param = " ".join(f"slice_point: {point}" for point in points)
    net = run_blocked(layer(param, "c", len(points) + 1), c=channels)
    check_against_reference(net, len(points) + 1)
    # slices do not begin within a block
    assert net.blobs["y0"].tensor.is_plain == any(point % BLOCK for point in points)


@pytest.mark.parametrize("axis", [0, 2, 3])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked_along_other_axes(axis, channels):
    check_against_reference(run_blocked(layer(f"axis: {axis}", "c"), size=(2, 3, 4, 6), c=channels), 2, axis)


def test_one_top():
    check_against_reference(run_blocked(layer(bottom="c", tops=1), c=40), 1)


@pytest.mark.parametrize("channels", [64, 40])
def test_a_part_without_a_loss_has_no_gradient(channels):
    """Its place in the bottom's gradient must be zero, even if that memory held other values before."""
    text = layer("slice_point: 32", "c")
    text += 'layer { name: "z" type: "ReLU" bottom: "y0" top: "z" }'
    text += 'layer { name: "nothing" type: "Silence" bottom: "y1" }'
    net = run_blocked(text, c=channels)
    assert not net.blobs["y1"].diff.any()
    np.testing.assert_array_equal(net.blobs["c"].diff[:, :32], net.blobs["y0"].diff)
    assert net.blobs["y0"].diff.any()
    assert not net.blobs["c"].diff[:, 32:].any()


def test_a_part_that_nobody_reads_has_no_gradient():
    loss = 'layer { name: "l" type: "EuclideanLoss" bottom: "y0" bottom: "t" top: "l" }'
    learns = CONVOLUTION.format(name="c", channels=32)
    text = net_text(learns + layer("slice_point: 16", "c") + loss, x=(2, 3, 4, 5), t=(2, 16, 4, 5))
    net = make_net(text.replace("force_backward: true", ""))
    net.forward()
    set_top_diff(net, "c", np.ones(net.blobs["c"].shape))  # values that the memory held before
    net.backward()
    assert net.blobs["y1"].diff is None
    np.testing.assert_array_equal(net.blobs["c"].diff[:, :16], net.blobs["y0"].diff)
    assert not net.blobs["c"].diff[:, 16:].any()


def test_shapes_and_errors():
    blobs = make_net(net_text(layer("slice_point: 1 slice_point: 4", tops=3), x=(2, 6, 4))).blobs
    assert [blobs[f"y{i}"].shape for i in range(3)] == [(2, 1, 4), (2, 3, 4), (2, 2, 4)]
    assert "expected 2 equal tops, but axis 1 has size 5" in error_of(layer(), x=(2, 5))
    assert "expected 1 slice_point values for 2 tops, got 2" in error_of(
        layer("slice_point: 1 slice_point: 2"), x=(2, 5)
    )
    for points in ("slice_point: 5", "slice_point: 0"):
        assert "expected rising slice_point values within (0, 5)" in error_of(layer(points), x=(2, 5))
