import numpy as np
import pytest

from tests.layers.harness import error_of, run


def layer(params="", bottoms='bottom: "p"'):
    param = f"hotspot_param {{ data_height: 12 data_width: 24 {params} }}"
    return f'layer {{ name: "layer" type: "Hotspot" {bottoms} top: "y" {param} }}'


def reference(points, height, width, deviation=1.0, centred=True):
    y = np.zeros((len(points), points.shape[1] // 2, height, width))
    rows, columns = np.mgrid[:height, :width]
    for n, k in np.ndindex(y.shape[:2]):
        px = (points[n, 2 * k] / 24 + 0.5 * centred) * width
        py = (points[n, 2 * k + 1] / 12 + 0.5 * centred) * height
        bell = np.exp(-((columns - px) ** 2 + (rows - py) ** 2) / (2 * deviation**2)) / (2 * np.pi * deviation**2)
        y[n, k] = np.where(bell > 1e-4, bell, 0)
    return y


POINTS = np.array([[0, 0, 5, -3], [-12, 6, 100, 100]], np.float32)


@pytest.mark.parametrize("deviation, centred", [(1, True), (2.5, False)])
def test_bells(deviation, centred):
    params = f"gaussian_std: {deviation} mean_removed: {str(centred).lower()}"
    expected = reference(POINTS, 6, 8, deviation, centred)
    assert expected.max() > 0.02 and (expected == 0).any()
    x = np.zeros((2, 3, 6, 8), np.float32)
    of_bottom = run(layer(params, 'bottom: "p" bottom: "x"'), p=POINTS, x=x).blobs["y"].data
    np.testing.assert_allclose(of_bottom, expected, rtol=1e-5, atol=1e-7)
    given = run(layer(f"{params} output_height: 6 output_width: 8"), p=POINTS).blobs["y"].data
    np.testing.assert_array_equal(given, of_bottom)


def test_errors():
    assert "expected points (N, 2K), x and y of each, got (2, 3)" in error_of(layer(), p=(2, 3))
    assert "expected output_height and output_width, or a second bottom" in error_of(layer(), p=(2, 4))
    assert "expected gaussian_std above 0, got 0" in error_of(layer("gaussian_std: 0"), p=(2, 4))
    missing = error_of(layer().replace("data_width: 24", ""), p=(2, 4))
    assert "data_height and data_width are missing" in missing
