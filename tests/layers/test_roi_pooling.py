import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff
from tests.layers.test_pooling import distinct

# The regions are: the whole image, inside, beyond the border, one pixel, malformed (x2 < x1, y2 < y1), unused.
REGIONS = np.array(
    [
        [0, 0, 0, 31, 23],
        [1, 5, 3, 20, 17],
        [1, 20, 10, 60, 50],
        [0, 9, 9, 9, 9],
        [1, 20, 8, 10, 12],
        [1, 4, 20, 12, 8],
        [-1, 0, 0, 31, 23],
        [0, 40, 40, 50, 50],
    ],
    np.float32,
)


def layer(params="pooled_h: 2 pooled_w: 3"):
    return f"""layer {{ name: "layer" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
        roi_pooling_param {{ {params} spatial_scale: 0.25 }} }}"""


def half_away(value):
    return int(np.floor(abs(value) + 0.5) * np.sign(value))


def reference(x, rois, pooled_h, pooled_w, scale):
    y = np.zeros((len(rois), x.shape[1], pooled_h, pooled_w))
    for r, (image, *corners) in enumerate(rois):
        if image < 0:
            continue
        x1, y1, x2, y2 = (half_away(c * scale) for c in corners)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(pooled_h, pooled_w):
            rows = np.arange(np.floor(i * height / pooled_h), np.ceil((i + 1) * height / pooled_h)) + y1
            columns = np.arange(np.floor(j * width / pooled_w), np.ceil((j + 1) * width / pooled_w)) + x1
            rows = rows[(rows >= 0) & (rows < x.shape[2])].astype(int)
            columns = columns[(columns >= 0) & (columns < x.shape[3])].astype(int)
            if rows.size and columns.size:
                y[r, :, i, j] = x[int(image)][:, rows][:, :, columns].max((1, 2))
    return y


@pytest.mark.parametrize(
    "params, pooled",
    [
        ("pooled_h: 2 pooled_w: 3", (2, 3)),
        ("pooled_size: 4", (4, 4)),
        ("pooled_size: 1", (1, 1)),
        ("pooled_h: 7 pooled_w: 7", (7, 7)),
    ],
)
def test_forward_and_gradients(params, pooled):
    x = distinct((2, 3, 6, 8)).astype(np.float32)
    net = run(layer(params), x=x, rois=REGIONS)
    np.testing.assert_array_equal(net.blobs["y"].data, reference(x, REGIONS, *pooled, 0.25).astype(np.float32))
    check_gradients(net_text(layer(params), x=x.shape, rois=REGIONS.shape), {"x": x, "rois": REGIONS})


@pytest.mark.parametrize("channels", [32, 40])
@pytest.mark.parametrize("pooled", [(2, 3), (1, 1)])
def test_blocked(pooled, channels):
    params = f"pooled_h: {pooled[0]} pooled_w: {pooled[1]}"
    text = layer(params).replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(2, 3, 6, 8), plain={"rois": REGIONS}, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, REGIONS, *pooled, 0.25), rtol=1e-6)
    plain = run(layer(params), x=c.data, rois=REGIONS)
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooled", [1, 2])
def test_features_of_one_pixel(pooled):
    x, params = np.array([[[[3]], [[-2]]]], np.float32), f"pooled_size: {pooled}"
    y = run(layer(params), x=x, rois=np.array([[0, 0, 0, 1, 1]], np.float32)).blobs["y"].data
    np.testing.assert_array_equal(y, np.broadcast_to(x, (1, 2, pooled, pooled)))


def test_regions_of_four_axes():
    x = distinct((2, 3, 6, 8)).astype(np.float32)
    rois = REGIONS.reshape(-1, 5, 1, 1)
    assert run(layer(), x=x, rois=rois).blobs["y"].shape == (8, 3, 2, 3)


@pytest.mark.parametrize("channels", [3, 40])
def test_the_first_of_equals_gets_the_gradient(channels):
    roi = np.array([[0, 4, 4, 31, 23]], np.float32)
    text = layer("pooled_size: 1").replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(1, 3, 6, 8), plain={"rois": roi}, c=channels) if channels > 3 else None
    if net is None:
        net = run(text.replace('"c"', '"x"'), x=np.zeros((1, 3, 6, 8), np.float32), rois=roi)
    for tensor in net.params.get("c", []):
        tensor.set(np.zeros(tensor.shape, np.float32))
    net.forward()
    set_top_diff(net, "y", np.ones((1, channels, 1, 1)))
    net.backward()
    expected = np.zeros((1, channels, 6, 8))
    expected[:, :, 1, 1] = 1
    np.testing.assert_array_equal(net.blobs["c" if channels > 3 else "x"].diff, expected)


def test_an_image_that_is_not_in_the_batch():
    net = make_net(net_text(layer(), x=(2, 3, 6, 8), rois=(1, 5)))
    net.blobs["rois"].set(np.array([[2, 0, 0, 8, 8]], np.float32))
    with pytest.raises(DataError, match="layer 'layer': row 0 of the regions names image 2, but the batch has 2"):
        net.forward()


def test_errors():
    shapes = {"x": (2, 3, 6, 8), "rois": (4, 5)}
    message = error_of(layer("pooled_h: 2"), **shapes)
    assert "layer 'layer' (ROIPooling): expected pooled_h and pooled_w of at least 1, got 2 and 0" in message
    assert "expected regions (R, 5)" in error_of(layer(), x=(2, 3, 6, 8), rois=(4, 4))
    assert "expected features of 4 axes" in error_of(layer(), x=(2, 3), rois=(4, 5))
    assert "expected spatial_scale above 0, got 0" in error_of(layer().replace("0.25", "0"), **shapes)
