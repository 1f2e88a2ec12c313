import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run
from tests.layers.test_roi_pooling import REGIONS, half_away

RANDOM = np.random.default_rng(3)


def layer(output_dim=2, group=3):
    return f"""layer {{ name: "layer" type: "PSROIPooling" bottom: "x" bottom: "rois" top: "y" psroi_pooling_param {{
        spatial_scale: 0.25 output_dim: {output_dim} group_size: {group} }} }}"""


def reference(x, rois, output_dim, group, scale):
    y = np.zeros((len(rois), output_dim, group, group))
    for r, (image, *corners) in enumerate(rois):
        if image < 0:
            continue
        left, top, right, bottom = (half_away(c) for c in corners)
        left, top, right, bottom = left * scale, top * scale, (right + 1) * scale, (bottom + 1) * scale
        height, width = max(bottom - top, 0.1) / group, max(right - left, 0.1) / group
        for c, i, j in np.ndindex(output_dim, group, group):
            rows = np.clip([np.floor(top + i * height), np.ceil(top + (i + 1) * height)], 0, x.shape[2]).astype(int)
            columns = np.clip([np.floor(left + j * width), np.ceil(left + (j + 1) * width)], 0, x.shape[3]).astype(int)
            cell = x[int(image), (c * group + i) * group + j, slice(*rows), slice(*columns)]
            y[r, c, i, j] = cell.mean() if cell.size else 0
    return y


@pytest.mark.parametrize("output_dim, group", [(2, 3), (1, 4), (5, 1)])
def test_forward_and_gradients(output_dim, group):
    x = RANDOM.normal(size=(2, output_dim * group**2, 6, 8)).astype(np.float32)
    text = layer(output_dim, group)
    y = run(text, x=x, rois=REGIONS).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, REGIONS, output_dim, group, 0.25), rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, x=x.shape, rois=REGIONS.shape), {"x": x, "rois": REGIONS})


def test_blocked():
    text = layer(2, 4).replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(2, 3, 6, 8), plain={"rois": REGIONS}, c=32)
    expected = reference(net.blobs["c"].data, REGIONS, 2, 4, 0.25)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_errors():
    message = error_of(layer(), x=(2, 16, 6, 8), rois=(4, 5))
    assert "layer 'layer' (PSROIPooling): expected features of 18 channels, output_dim 2 times group_size 3" in message
    assert "expected output_dim and group_size of at least 1, got 2 and 0" in error_of(
        layer(group=0), x=(2, 18, 6, 8), rois=(4, 5)
    )
