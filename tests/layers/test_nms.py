import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import error_of, run

RANDOM = np.random.default_rng(9)


def layer(params="threshold: 0.3 max_peaks: 4 num_parts: 2"):
    return f'layer {{ name: "layer" type: "Nms" bottom: "x" top: "y" nms_param {{ {params} }} }}'


def reference(x, parts, most, threshold):
    """Computes the layer as the fork's GPU code does."""
    images, _, height, width = x.shape
    y = np.zeros((images, parts, most + 1, 3))
    for n, part in np.ndindex(images, parts):
        plane, count = x[n, part].astype(np.float64), 0
        for row, column in np.ndindex(height, width):
            window = plane[row - 1 : row + 2, column - 1 : column + 2] if row and column else np.zeros((0, 0))
            value = plane[row, column]
            if window.shape != (3, 3) or value <= threshold or (window >= value).sum() > 1:
                continue
            count += 1
            if count > most:
                continue
            rows, columns = np.arange(max(row - 3, 1), row + 4), np.arange(max(column - 3, 1), column + 4)
            rows, columns = rows[rows < height], columns[columns < width]
            weights = np.maximum(plane[np.ix_(rows, columns)], 0)
            centers = (weights.sum(0) @ columns, weights.sum(1) @ rows)
            y[n, part, count] = [*np.array(centers) / weights.sum(), value]
        y[n, part, 0, 0] = count
    return y


@pytest.mark.parametrize("size", [(9, 14), (14, 9), (3, 3), (2, 5)])
def test_peaks(size):
    x = RANDOM.normal(size=(2, 3, *size)).astype(np.float32)
    y = run(layer(), x=x).blobs["y"].data
    expected = reference(x, 2, 4, 0.3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    if min(size) > 3:
        assert expected[..., 0, 0].max() > 4  # more peaks than there is room for


def test_equal_neighbours_are_no_peaks():
    x = np.zeros((1, 1, 6, 7), np.float32)
    x[0, 0, 2, 2:4], x[0, 0, 4, 5], x[0, 0, 0, 6] = 1, 0.5, 2
    y = run(layer("num_parts: 1 max_peaks: 2 threshold: 0.4"), x=x).blobs["y"].data
    assert y[0, 0, :, 2].tolist() == [0, 0.5, 0]
    assert y[0, 0, 0].tolist() == [1, 0, 0]


def test_nothing_above_0_around_a_peak():
    x = np.full((1, 1, 5, 5), -2, np.float32)
    x[0, 0, 2, 3] = -1
    y = run(layer("num_parts: 1 max_peaks: 1 threshold: -1.5"), x=x).blobs["y"].data
    assert y[0, 0].tolist() == [[1, 0, 0], [3, 2, -1]]


def test_numbers_that_are_none_are_no_peaks():
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 2, 2] = np.nan
    assert not run(layer("num_parts: 1"), x=x).blobs["y"].data.any()


def test_blocked():
    net = run_blocked(layer().replace('bottom: "x"', 'bottom: "c"'), size=(2, 3, 9, 14), c=32)
    expected = reference(net.blobs["c"].data, 2, 4, 0.3)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-4)


def test_errors():
    assert "layer 'layer' (Nms): expected a bottom (N, C, H, W), got (2, 3)" in error_of(layer(), x=(2, 3))
    message = "expected num_parts from 1 to 1, the channels of the bottom, got 2"
    assert message in error_of(layer(), x=(1, 1, 5, 5))
