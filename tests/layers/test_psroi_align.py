import numpy as np
import pytest

from engine.config import parse_net
from engine.errors import ConfigError
from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run
from tests.layers.test_psroi_pooling import REGIONS
from tests.layers.test_roi_align import pixel
from tests.layers.test_roi_align import reference as averages

RANDOM = np.random.default_rng(5)


def layer(output_dim=2, group=3, params="", field="psroi_align_param"):
    return f"""layer {{ name: "layer" type: "PSROIAlign" bottom: "x" bottom: "rois" top: "y" {field} {{
        spatial_scale: 0.25 output_dim: {output_dim} group_size: {group} {params} }} }}"""


def channel(c, i, j, group):
    return (c * group + i) * group + j


def reference(x, rois, output_dim, group, samples, scale):
    """Computes the layer sample by sample, as the GPU code of R-FCN-PSROIAlign does."""
    y, last = np.zeros((len(rois), output_dim, group, group)), np.array(x.shape[2:]) - 1.0
    for r, (image, left, top, right, bottom) in enumerate(rois.astype(np.float64)):
        if image < 0:
            continue
        begin = np.array([top, left]) * scale
        length = np.maximum(np.array([bottom + 1, right + 1]) * scale - begin, 0.1) / group
        for c, i, j in np.ndindex(output_dim, group, group):
            start = np.clip(begin + length * [i, j], 0, last)
            end = np.clip(begin + length * [i + 1, j + 1], 0, last)
            for a, b in np.ndindex(samples, samples):
                at = start + length * [a + 1, b + 1] / (samples + 1)
                if (at < end).all():
                    value = pixel(x[int(image), channel(c, i, j, group)][None], *at)[0]
                    y[r, c, i, j] += value / samples**2
    return y


@pytest.mark.parametrize("output_dim, group, samples", [(2, 3, 2), (1, 4, 1), (5, 1, 3)])
def test_forward_and_gradients(output_dim, group, samples):
    x = RANDOM.normal(size=(2, output_dim * group**2, 6, 8)).astype(np.float32)
    text = layer(output_dim, group, f"sample_num: {samples}" if samples != 2 else "")
    y = run(text, x=x, rois=REGIONS).blobs["y"].data
    expected = reference(x, REGIONS, output_dim, group, samples, 0.25)
    assert np.count_nonzero(expected) > expected.size / 4
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, x=x.shape, rois=REGIONS.shape), {"x": x, "rois": REGIONS})


@pytest.mark.parametrize("ratio", [2, 0, -1, 3])
def test_samples_of_roi_align(ratio):
    x = RANDOM.normal(size=(2, 18, 6, 8)).astype(np.float32)
    text = layer(2, 3, f"sampling_ratio: {ratio}")
    y = run(text, x=x, rois=REGIONS).blobs["y"].data
    every = averages(x, REGIONS, 3, 3, ratio, 0.25)
    for c, i, j in np.ndindex(2, 3, 3):
        np.testing.assert_allclose(y[:, c, i, j], every[:, channel(c, i, j, 3), i, j], rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, x=x.shape, rois=REGIONS.shape), {"x": x, "rois": REGIONS})


@pytest.mark.parametrize("samples", [1, 2])
def test_regions_anywhere(samples):
    x = RANDOM.normal(size=(2, 9, 9, 7)).astype(np.float32)
    centres, sizes = RANDOM.uniform(-20, 60, (50, 2)), RANDOM.uniform(-4, 60, (50, 2))
    rois = np.column_stack([np.arange(50) % 2, centres - sizes / 2, centres + sizes / 2]).astype(np.float32)
    y = run(layer(1, 3, f"sample_num: {samples}"), x=x, rois=rois).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, rois, 1, 3, samples, 0.25), rtol=1e-3, atol=1e-4)


def test_blocked():
    text = layer(2, 4).replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(2, 3, 6, 8), plain={"rois": REGIONS}, c=32)
    expected = reference(net.blobs["c"].data, REGIONS, 2, 4, 2, 0.25)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_errors():
    shapes = {"x": (2, 18, 6, 8), "rois": (4, 5)}
    message = error_of(layer(), x=(2, 16, 6, 8), rois=(4, 5))
    assert "layer 'layer' (PSROIAlign): expected features of 18 channels, output_dim 2 times group_size 3" in message
    assert "expected sample_num from 1 to 1000, got 0" in error_of(layer(params="sample_num: 0"), **shapes)
    message = error_of(layer(params="sample_num: 2147483647"), **shapes)
    assert "expected sample_num from 1 to 1000, got 2147483647" in message
    message = error_of(layer(params="sampling_ratio: 1001"), **shapes)
    assert "expected sampling_ratio from 0 to 1000, got 1001" in message
    message = error_of(layer(params="sample_num: 1 sampling_ratio: 2"), **shapes)
    assert "expected sample_num or sampling_ratio, which are two forks' samples, got both" in message
    message = error_of(layer(field="psroi_pooling_param"), **shapes)
    assert "psroi_pooling_param of a PSROIAlign means other samples in each version of its fork" in message


def test_texts_lack_nothing():
    with pytest.raises(ConfigError, match="output_dim"):
        parse_net(layer().replace("output_dim: 2", ""), "n.prototxt")
