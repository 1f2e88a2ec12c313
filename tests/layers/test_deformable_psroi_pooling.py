import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff
from tests.layers.test_psroi_pooling import REGIONS, half_away
from tests.layers.test_roi_align import pixel

RANDOM = np.random.default_rng(6)


def layer(params="part_size: 3", output_dim=2, group=3, scale=0.25):
    offsets = "" if "no_trans: true" in params else 'bottom: "offsets"'
    return f"""layer {{ name: "layer" type: "DeformablePSROIPooling" bottom: "x" bottom: "rois" {offsets} top: "y"
        deformable_psroi_pooling_param {{
            spatial_scale: {scale} output_dim: {output_dim} group_size: {group} trans_std: 0.1 {params} }} }}"""


def reference(x, rois, offsets, output_dim, group, samples, scale, trans_std=0.1):
    """Computes the layer sample by sample, as the GPU code of forks does. `offsets` are (R, 2 classes, part, part) or
    None."""
    y, size = np.zeros((len(rois), output_dim, group, group)), np.array(x.shape[2:])
    for r, (image, *corners) in enumerate(rois):
        if image < 0:
            continue
        left, top, right, bottom = (half_away(corner) for corner in corners)
        begin = np.array([top, left]) * scale - 0.5
        extent = np.maximum(np.array([bottom + 1, right + 1]) * scale - 0.5 - begin, 0.1)
        for c, i, j in np.ndindex(output_dim, group, group):
            start = begin + extent * [i, j] / group
            if offsets is not None:
                classes, part = offsets.shape[1] // 2, offsets.shape[2]
                across, down = offsets[r].reshape(classes, 2, part, part)[
                    c * classes // output_dim, :, i * part // group, j * part // group
                ]
                start = start + np.array([down, across]) * trans_std * extent
            found = []
            for a, b in np.ndindex(samples, samples):
                at = start + extent / group * [a, b] / samples
                if (at >= -0.5).all() and (at <= size - 0.5).all():
                    plane = x[int(image), (c * group + i) * group + j][None]
                    found.append(pixel(plane, *np.clip(at, 0, size - 1))[0])
            y[r, c, i, j] = np.mean(found) if found else 0
    return y


def bottoms(output_dim=2, group=3, classes=2, part=3):
    x = RANDOM.normal(size=(2, output_dim * group**2, 6, 8)).astype(np.float32)
    return {"x": x, "rois": REGIONS, "offsets": RANDOM.normal(size=(8, 2 * classes, part, part)).astype(np.float32)}


@pytest.mark.parametrize(
    "output_dim, group, classes, part, samples", [(2, 3, 1, 3, 2), (4, 2, 2, 3, 4), (3, 4, 3, 2, 1), (2, 1, 1, 1, 3)]
)
def test_forward(output_dim, group, classes, part, samples):
    values = bottoms(output_dim, group, classes, part)
    text = layer(f"part_size: {part} sample_per_part: {samples}", output_dim, group)
    y = run(text, **values).blobs["y"].data
    expected = reference(*values.values(), output_dim, group, samples, 0.25)
    assert np.count_nonzero(expected) > expected.size / 3
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_gradients():
    random = np.random.default_rng(2)  # with this seed the checker's steps move no sample across a pixel
    rois = np.array([[0, 0, 0, 23, 23], [1, 6, 8, 17, 19], [0, 12, 10, 40, 30], [-1, 0, 0, 8, 8]], np.float32)
    x = random.normal(size=(2, 16, 7, 9)).astype(np.float32)
    values = {"x": x, "rois": rois, "offsets": random.uniform(-1.5, 1.5, (4, 4, 2, 2)).astype(np.float32)}
    text = layer("part_size: 2 sample_per_part: 2", output_dim=4, group=2)
    check_gradients(net_text(text, **{name: value.shape for name, value in values.items()}), values, step=2e-3)


@pytest.mark.parametrize("third", [False, True])
def test_without_offsets(third):
    values = bottoms()
    text = layer("no_trans: true sample_per_part: 4 pooled_size: 7")
    if third:
        text = text.replace('top: "y"', 'bottom: "offsets" top: "y"')
    else:
        del values["offsets"]
    net = run(text, **values)
    expected = reference(values["x"], REGIONS, None, 2, 3, 4, 0.25)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    set_top_diff(net, "y", np.ones(expected.shape))
    net.backward()
    assert net.blobs["x"].diff.any()
    check_gradients(net_text(text, **{name: value.shape for name, value in values.items()}), values)


def test_part_size_0_is_that_of_group_size():
    values = bottoms()
    y = [run(layer(params), **values).blobs["y"].data for params in ("", "part_size: 3")]
    np.testing.assert_array_equal(*y)


def test_an_offset_has_no_slope_where_samples_are_on_pixels():
    """The forks do the same. It matters because untrained offsets are 0, which often puts samples on pixels."""
    rois = np.array([[0, 2, 2, 9, 9]], np.float32)  # begins at pixel 0
    x = RANDOM.normal(size=(1, 1, 6, 8)).astype(np.float32)
    net = run(layer("part_size: 1", 1, 1), x=x, rois=rois, offsets=np.zeros((1, 2, 1, 1), np.float32))
    np.testing.assert_allclose(net.blobs["y"].data, x[:, :, :1, :1])
    set_top_diff(net, "y", np.ones((1, 1, 1, 1)))
    net.backward()
    assert not net.blobs["offsets"].diff.any()
    assert net.blobs["x"].diff[0, 0, 0, 0] == 1


def test_offsets_that_are_no_numbers_lead_nowhere():
    """As in DeformableConvolution, the value is 0 and there is no gradient."""
    values = bottoms()
    values["offsets"][:] = np.nan
    net = run(layer(), **values)
    set_top_diff(net, "y", np.ones(net.blobs["y"].shape))
    net.backward()
    assert not any(array.any() for array in (net.blobs["y"].data, net.blobs["x"].diff, net.blobs["offsets"].diff))


def test_blocked():
    values = bottoms(2, 4, 2, 4)
    text = layer("part_size: 4 sample_per_part: 2", 2, 4).replace('bottom: "x"', 'bottom: "c"')
    plain = {"rois": REGIONS, "offsets": values["offsets"]}
    net = run_blocked(text, size=(2, 3, 6, 8), plain=plain, c=32)
    expected = reference(net.blobs["c"].data, REGIONS, values["offsets"], 2, 4, 2, 0.25)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    again = run(text.replace('bottom: "c"', 'bottom: "x"'), x=net.blobs["c"].data, **plain)
    set_top_diff(again, "y", net.blobs["y"].diff)
    again.backward()
    np.testing.assert_allclose(net.blobs["c"].diff, again.blobs["x"].diff, rtol=1e-4, atol=1e-5)


def test_errors():
    shapes = {"x": (2, 18, 6, 8), "rois": (4, 5), "offsets": (4, 4, 3, 3)}
    message = error_of(layer(), **{**shapes, "x": (2, 16, 6, 8)})
    assert "layer 'layer' (DeformablePSROIPooling): expected features of 18 channels" in message
    message = error_of(layer(), **{**shapes, "offsets": (4, 4, 3, 2)})
    assert "expected offsets (4, '2 classes', 3, 3), two for each class and each of part_size squared pieces" in message
    assert "expected offsets (4, '2 classes', 3, 3)" in error_of(layer(), **{**shapes, "offsets": (4, 3, 3, 3)})
    assert "expected offsets (4, '2 classes', 3, 3)" in error_of(layer(), **{**shapes, "offsets": (5, 4, 3, 3)})
    assert "expected offsets (4, '2 classes', 3, 3)" in error_of(layer(), **{**shapes, "offsets": (4, 36)})
    message = error_of(layer(), **{**shapes, "offsets": (4, 6, 3, 3)})
    assert "expected offsets whose classes, 3, half of their channels, divide output_dim 2" in message
    message = error_of(layer("part_size: -1"), **shapes)
    assert "expected part_size of at least 1, or 0 for that of group_size, got -1" in message
    for samples in (0, 1001):
        message = error_of(layer(f"sample_per_part: {samples}"), **shapes)
        assert f"expected sample_per_part from 1 to 1000, got {samples}" in message
    message = error_of(layer().replace('bottom: "offsets"', ""), **shapes)
    assert "expected offsets as bottom 3, or no_trans: true, by which cells are not moved" in message
