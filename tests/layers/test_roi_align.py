import numpy as np
import pytest

from engine.config import parse_net
from engine.errors import ConfigError, DataError
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff
from tests.layers.test_roi_pooling import REGIONS

RANDOM = np.random.default_rng(7)


def layer(params="pooled_h: 2 pooled_w: 3 sampling_ratio: 2", kind="ROIAlign"):
    return f"""layer {{ name: "layer" type: "{kind}" bottom: "x" bottom: "rois" top: "y"
        roi_align_param {{ {params} spatial_scale: 0.25 }} }}"""


def pixel(x, row, column):
    """Returns the values of the planes of x (C, H, W) at a point between pixels."""
    height, width = x.shape[1:]
    if not (-1 <= row <= height and -1 <= column <= width):
        return np.zeros(len(x))
    row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
    top, left = int(row), int(column)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = row - top, column - left
    upper = (1 - across) * x[:, top, left] + across * x[:, top, right]
    return (1 - down) * upper + down * ((1 - across) * x[:, bottom, left] + across * x[:, bottom, right])


def reference(x, rois, pooled_h, pooled_w, ratio, scale):
    """Computes the layer sample by sample, as forks for Mask R-CNN do."""
    y = np.zeros((len(rois), x.shape[1], pooled_h, pooled_w))
    for r, (image, *corners) in enumerate(rois.astype(np.float64)):
        if image < 0:
            continue
        left, top, right, bottom = (corner * scale for corner in corners)
        height, width = max(bottom - top, 1) / pooled_h, max(right - left, 1) / pooled_w
        down, across = (ratio, ratio) if ratio > 0 else (int(np.ceil(height)), int(np.ceil(width)))
        for i, j, a, b in np.ndindex(pooled_h, pooled_w, down, across):
            row, column = top + (i + (a + 0.5) / down) * height, left + (j + (b + 0.5) / across) * width
            y[r, :, i, j] += pixel(x[int(image)], row, column) / (down * across)
    return y


@pytest.mark.parametrize(
    "params, pooled, ratio",
    [
        ("pooled_h: 2 pooled_w: 3 sampling_ratio: 2", (2, 3), 2),
        ("pooled_h: 2 pooled_w: 2", (2, 2), 0),
        ("pooled_h: 1 pooled_w: 1 sampling_ratio: 0", (1, 1), 0),
        ("pooled_h: 7 pooled_w: 7 sampling_ratio: 1", (7, 7), 1),
        ("pooled_h: 3 pooled_w: 1 sampling_ratio: 5", (3, 1), 5),
    ],
)
def test_forward_and_gradients(params, pooled, ratio):
    x = RANDOM.normal(size=(2, 3, 6, 8)).astype(np.float32)
    y = run(layer(params), x=x, rois=REGIONS).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, REGIONS, *pooled, ratio, 0.25), rtol=1e-4, atol=1e-5)
    check_gradients(net_text(layer(params), x=x.shape, rois=REGIONS.shape), {"x": x, "rois": REGIONS})


def test_regions_anywhere():
    x = RANDOM.normal(size=(2, 4, 9, 7)).astype(np.float32)
    centres, sizes = RANDOM.uniform(-20, 60, (50, 2)), RANDOM.uniform(-4, 60, (50, 2))
    rois = np.column_stack([np.arange(50) % 2, centres - sizes / 2, centres + sizes / 2]).astype(np.float32)
    for ratio in (0, 3):
        y = run(layer(f"pooled_h: 3 pooled_w: 4 sampling_ratio: {ratio}"), x=x, rois=rois).blobs["y"].data
        np.testing.assert_allclose(y, reference(x, rois, 3, 4, ratio, 0.25), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("channels", [32, 40])
@pytest.mark.parametrize("pooled", [(2, 3), (1, 1)])
def test_blocked(pooled, channels):
    params = f"pooled_h: {pooled[0]} pooled_w: {pooled[1]} sampling_ratio: 2"
    text = layer(params).replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(2, 3, 6, 8), plain={"rois": REGIONS}, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_allclose(y.data, reference(c.data, REGIONS, *pooled, 2, 0.25), rtol=1e-4, atol=1e-5)
    plain = run(layer(params), x=c.data, rois=REGIONS)
    set_top_diff(plain, "y", y.diff)
    plain.backward()
    np.testing.assert_allclose(c.diff, plain.blobs["x"].diff, rtol=1e-4, atol=1e-5)


def test_either_name():
    x = RANDOM.normal(size=(2, 3, 6, 8)).astype(np.float32)
    y = [run(layer(kind=kind), x=x, rois=REGIONS).blobs["y"].data for kind in ("ROIAlign", "RoIAlign")]
    np.testing.assert_array_equal(*y)


def test_an_image_that_is_not_in_the_batch():
    net = make_net(net_text(layer(), x=(2, 3, 6, 8), rois=(1, 5)))
    net.blobs["rois"].set(np.array([[2, 0, 0, 8, 8]], np.float32))
    with pytest.raises(DataError, match="layer 'layer': row 0 of the regions names image 2, but the batch has 2"):
        net.forward()


def test_errors():
    shapes = {"x": (2, 3, 6, 8), "rois": (4, 5)}
    message = error_of(layer("pooled_h: 2"), **shapes)
    assert "layer 'layer' (ROIAlign): expected pooled_h and pooled_w of at least 1, got 2 and 0" in message
    assert "expected regions (R, 5)" in error_of(layer(), x=(2, 3, 6, 8), rois=(4, 4))
    message = error_of(
        layer().replace("roi_align_param", "roi_pooling_param").replace("sampling_ratio: 2", ""), **shapes
    )
    assert "roi_pooling_param of a ROIAlign means a maximum in one fork and other samples in the next" in message
    message = error_of(layer("pooled_h: 2 pooled_w: 2 sampling_ratio: 2147483647"), **shapes)
    assert "expected sampling_ratio from 0 to 1000, got 2147483647" in message
    with pytest.raises(ConfigError, match="roi_end_mode is Ascend's and is not supported"):
        parse_net(layer("pooled_h: 2 pooled_w: 2 roi_end_mode: 1"), "n.prototxt")
