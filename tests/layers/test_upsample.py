import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run, set_top_diff

RANDOM = np.random.default_rng(6)


def layer(param="", bottoms=("x", "mask")):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "layer" type: "Upsample" {names} top: "y" upsample_param {{ {param} }} }}'


def masked(h, w, height, width, shape=(2, 3)):
    """Returns x of h x w, and a mask of different places in a plane of height x width."""
    mask = np.stack([RANDOM.permutation(height * width)[: h * w] for _ in range(np.prod(shape))])
    return RANDOM.normal(size=(*shape, h, w)).astype(np.float32), mask.reshape(*shape, h, w).astype(np.float32)


def unpooled(x, mask, height, width):
    y = np.zeros((*x.shape[:2], height * width), np.float32)
    np.put_along_axis(y, mask.reshape(*x.shape[:2], -1).astype(np.int64), x.reshape(*x.shape[:2], -1), -1)
    return y.reshape(*x.shape[:2], height, width)


@pytest.mark.parametrize(
    "param, size",
    [
        ("", (6, 8)),
        ("scale: 3", (9, 12)),
        ("scale_h: 2 scale_w: 4", (6, 16)),
        ("scale: 2 pad_out_h: true", (5, 8)),
        ("pad_out_w: true", (6, 7)),
        ("upsample_h: 7 upsample_w: 9", (7, 9)),
        ("scale: 2 upsample_h: 7 upsample_w: 9", (7, 9)),  # SegNet's nets have these fields in this order
    ],
)
def test_with_a_mask(param, size):
    x, mask = masked(3, 4, *size)
    net = run(layer(param), x=x, mask=mask)
    np.testing.assert_array_equal(net.blobs["y"].data, unpooled(x, mask, *size))
    net = make_net(net_text(layer(param), x=x.shape, mask=mask.shape))
    inputs(net)["mask"].set(mask)
    check_gradients(net_text(layer(param), x=x.shape, mask=mask.shape), {"x": x, "mask": mask})


def test_it_reverses_a_pooling():
    """Windows may overlap. Of several values for one place the last is taken, but all get its gradient."""
    pooling = """layer { name: "pool" type: "Pooling" bottom: "x" top: "p" top: "mask" pooling_param {
        kernel_size: 3 stride: 2 } }"""
    x = RANDOM.normal(size=(2, 3, 7, 9)).astype(np.float32)
    net = run(pooling + layer("upsample_h: 7 upsample_w: 9", ("p", "mask")), x=x)
    p, mask, y = (net.blobs[name].data for name in ("p", "mask", "y"))
    np.testing.assert_array_equal(y, unpooled(p, mask, 7, 9))
    given = RANDOM.normal(size=y.shape).astype(np.float32)
    set_top_diff(net, "y", given)
    net.backward()
    places = mask.reshape(2, 3, -1).astype(np.int64)
    expected = np.take_along_axis(given.reshape(2, 3, -1), places, -1).reshape(p.shape)
    np.testing.assert_array_equal(net.blobs["p"].diff, expected)


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    pooling = """layer { name: "pool" type: "Pooling" bottom: "c" top: "p" top: "mask" pooling_param {
        kernel_size: 2 stride: 2 } }"""
    net = run_blocked(pooling + layer("", ("p", "mask")), size=(2, 3, 6, 8), c=channels)
    y = net.blobs["y"]
    assert not y.tensor.is_plain
    np.testing.assert_array_equal(y.data, unpooled(net.blobs["p"].data, net.blobs["mask"].data, 6, 8))
    places = net.blobs["mask"].data.reshape(2, channels, -1).astype(np.int64)
    expected = np.take_along_axis(y.diff.reshape(2, channels, -1), places, -1).reshape(net.blobs["p"].shape)
    np.testing.assert_array_equal(net.blobs["p"].diff, expected)


def test_a_row_major_mask_for_a_blocked_blob():
    _, mask = masked(5, 6, 10, 12, (2, 40))
    net = run_blocked(layer("", ("c", "mask")), plain={"mask": mask}, c=40)
    np.testing.assert_array_equal(net.blobs["y"].data, unpooled(net.blobs["c"].data, mask, 10, 12))


@pytest.mark.parametrize("param, scale", [("", (2, 2)), ("scale_h: 3 scale_w: 2", (3, 2)), ("scale: 4", (4, 4))])
def test_without_a_mask_pixels_are_repeated(param, scale):
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    net = run(layer(param, ["x"]), x=x)
    np.testing.assert_array_equal(net.blobs["y"].data, x.repeat(scale[0], 2).repeat(scale[1], 3))
    check_gradients(net_text(layer(param, ["x"]), x=x.shape), {"x": x})


def test_repeated_blocked():
    net = run_blocked(layer("scale_h: 2 scale_w: 3", ["c"]), c=40)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal(y.data, c.data.repeat(2, 2).repeat(3, 3))
    n, channels, h, w = c.shape
    np.testing.assert_allclose(c.diff, y.diff.reshape(n, channels, h, 2, w, 3).sum((3, 5)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [24, -1, np.nan])
def test_a_mask_of_another_size(place):
    x, mask = masked(3, 4, 4, 6)
    mask[1, 2, 0, 1] = place
    with pytest.raises(DataError, match=r"layer 'layer': the mask names place .* of a plane of 4 x 6; expected the"):
        run(layer("upsample_h: 4 upsample_w: 6"), x=x, mask=mask)


@pytest.mark.parametrize(
    "param, message",
    [
        ("scale: 1", "expected a scale of at least 2, got 1"),
        ("scale: 3 pad_out_h: true", "expected a scale of 2 with pad_out_h, got 3"),
        ("scale_h: 2", "expected upsample_h and upsample_w, or scale, or scale_h and scale_w; got scale_h"),
        ("upsample_w: 8", "expected upsample_h and upsample_w, or scale, or scale_h and scale_w; got upsample_w"),
        ("scale: 2 scale_h: 2 scale_w: 2", "got scale_h, scale_w, scale"),
        ("upsample_h: 1 upsample_w: 8", "expected upsample_h and upsample_w of at least 2, got 1 and 8"),
    ],
)
def test_errors_of_parameters(param, message):
    assert message in error_of(layer(param), x=(1, 1, 3, 4), mask=(1, 1, 3, 4))


def test_errors_of_shapes():
    assert "expected a mask of the first bottom's shape, (1, 2, 3, 4), got (1, 2, 3, 5)" in error_of(
        layer(), x=(1, 2, 3, 4), mask=(1, 2, 3, 5)
    )
    assert "expected a bottom of 4 axes (N, C, H, W), got (1, 2, 3)" in error_of(layer(), x=(1, 2, 3), mask=(1, 2, 3))
    message = "expected without a mask, as second bottom, a top of multiples of 3 x 4, got 7 x 8"
    assert message in error_of(layer("upsample_h: 7 upsample_w: 8", ["x"]), x=(1, 2, 3, 4))


def test_deconvnets_unpooling():
    """Values go to where the pooling found them, and the gradients come from there."""
    x = np.random.default_rng(1).normal(size=(2, 3, 6, 8)).astype(np.float32)
    text = """
    layer { name: "pool" type: "Pooling" bottom: "x" top: "p" top: "mask"
      pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
    layer { name: "up" type: "Unpooling" bottom: "p" bottom: "mask" top: "y"
      unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_h: 6 unpool_w: 8 } }"""
    net = run(text, x=x)
    largest = x == x.reshape(2, 3, 3, 2, 4, 2).max((3, 5), keepdims=True).repeat(2, 3).repeat(2, 5).reshape(x.shape)
    np.testing.assert_array_equal(net.blobs["y"].data, np.where(largest, x, 0))
    set_top_diff(net, "y", x + 1)
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, np.where(largest, x + 1, 0))
