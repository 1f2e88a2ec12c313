import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(3)


def layer(kind, params, bottoms=("x",)):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "layer" type: "{kind}" {names} top: "y" {kind.lower()}_param {{ {params} }} }}'


def triangle(x):
    return max(0, 1 - abs(x))


def cubic(x):
    x = abs(x)
    return x * x * (1.5 * x - 2.5) + 1 if x <= 1 else x * (x * (-0.5 * x + 2.5) - 4) + 2 if x < 2 else 0


def half_away(x):
    return int(np.floor(abs(x) + 0.5) * np.sign(x))


def resampled(x, height, width, kind, antialias=True):
    """Computes each pixel of the top by itself, as the fork's kernel does."""
    n, channels, h, w = x.shape
    fx, fy = w / width, h / height
    y = np.zeros((n, channels, height, width))
    smooth = antialias and max(fx, fy) > 1
    ax, ay = (1 / fx, 1 / fy) if smooth else (1, 1)
    kernel, size = (triangle, 2) if kind == "LINEAR" else (cubic, 4)
    rx, ry = (2 if f < 1 else int(np.ceil(size / a)) for f, a in ((fx, ax), (fy, ay)))
    for row, column in np.ndindex(height, width):
        at_x, at_y = column * fx + fy / 2 - 0.5, row * fy + fx / 2 - 0.5
        if kind == "NEAREST":
            y[:, :, row, column] = x[:, :, min(max(half_away(at_y), 0), h - 1), min(max(half_away(at_x), 0), w - 1)]
            continue
        total = 0
        for i in range(half_away(at_y) - ry, half_away(at_y) + ry + 1):
            for j in range(half_away(at_x) - rx, half_away(at_x) + rx + 1):
                if 0 <= i < h and 0 <= j < w:
                    weight = ax * kernel(ax * (at_x - j)) * ay * kernel(ay * (at_y - i))
                    y[:, :, row, column] += weight * x[:, :, i, j]
                    total += weight
        y[:, :, row, column] /= total
    return y


@pytest.mark.parametrize("size", [(10, 14), (3, 4), (5, 12), (5, 7)])
@pytest.mark.parametrize("kind", ["NEAREST", "LINEAR", "CUBIC"])
def test_resample(kind, size):
    x = RANDOM.normal(size=(2, 3, 5, 7))
    text = layer("Resample", f"height: {size[0]} width: {size[1]} type: {kind}")
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, resampled(x, *size, kind), rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_resample_without_smoothing():
    x = RANDOM.normal(size=(1, 2, 9, 9))
    net = run(layer("Resample", "height: 3 width: 3 antialias: false"), x=x)
    np.testing.assert_allclose(net.blobs["y"].data, resampled(x, 3, 3, "LINEAR", False), rtol=1e-4, atol=1e-5)
    assert np.abs(net.blobs["y"].data - resampled(x, 3, 3, "LINEAR")).max() > 0.1


def downsampled(x, height, width):
    n, channels, h, w = x.shape
    sx, sy = (w - 1) / (width - 1), (h - 1) / (height - 1)
    y = np.zeros((n, channels, height, width))
    for i, c, row, column in np.ndindex(y.shape):
        sum_, good, bad = 0.0, 0.0, 0.0
        for u, v in np.ndindex(h, w):
            weight = triangle((u - row * sy) / sy) * triangle((v - column * sx) / sx)
            if np.isnan(x[i, c, u, v]):
                bad += weight
            else:
                sum_, good = sum_ + weight * x[i, c, u, v], good + weight
        y[i, c, row, column] = np.nan if bad > good / 2 else sum_ / good
    return y


def test_downsample():
    x = RANDOM.normal(size=(2, 2, 9, 13))
    x[RANDOM.uniform(size=x.shape) < 0.25] = np.nan
    expected = downsampled(x, 4, 5)
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_allclose(
        run(layer("Downsample", "top_height: 4 top_width: 5"), x=x).blobs["y"].data, expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["Resample", "Downsample"])
def test_size_of_a_second_bottom(kind):
    x = RANDOM.normal(size=(1, 2, 9, 9))
    net = run(layer(kind, "", ("x", "r")), x=x, r=np.zeros((3, 7, 4, 5)))
    expected = downsampled(x, 4, 5) if kind == "Downsample" else resampled(x, 4, 5, "LINEAR")
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_downsample_to_its_own_size():
    x = RANDOM.normal(size=(1, 2, 1, 9)).astype(np.float32)
    np.testing.assert_array_equal(run(layer("Downsample", "top_height: 1 top_width: 9"), x=x).blobs["y"].data, x)


def aligned(x, height, width):
    rows, columns = (np.linspace(0, size - 1, top) for size, top in zip(x.shape[2:], (height, width)))
    top, left = np.minimum(rows.astype(int), x.shape[2] - 1), np.minimum(columns.astype(int), x.shape[3] - 1)
    below, right = np.minimum(top + 1, x.shape[2] - 1), np.minimum(left + 1, x.shape[3] - 1)
    b, a = (rows - top)[:, None], columns - left
    mixed = [(1 - a) * x[:, :, at][..., left] + a * x[:, :, at][..., right] for at in (top, below)]
    return (1 - b) * mixed[0] + b * mixed[1]


@pytest.mark.parametrize(
    "params, size",
    [
        ("", (6, 7)),
        ("top_height: 9 top_width: 10", (9, 10)),
        ("top_height: 9", (6, 7)),
        ("size_divisible_by: 4", (8, 8)),
    ],
)
def test_accum(params, size):
    values = {"x": RANDOM.normal(size=(2, 2, 3, 7)), "a": RANDOM.normal(size=(2, 1, 6, 4))}
    text = layer("Accum", params, ("x", "a"))
    expected = np.concatenate([aligned(each, *size) for each in values.values()], 1)
    np.testing.assert_allclose(run(text, **values).blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, **{name: each.shape for name, each in values.items()}), values)


def test_accum_of_a_reference():
    x, a = RANDOM.normal(size=(2, 2, 3, 7)), RANDOM.normal(size=(2, 1, 6, 4))
    net = run(layer("Accum", "have_reference: true", ("x", "a", "r")), x=x, a=a, r=np.zeros((2, 9, 4, 5)))
    np.testing.assert_allclose(
        net.blobs["y"].data, np.concatenate([aligned(x, 4, 5), aligned(a, 4, 5)], 1), rtol=1e-4, atol=1e-5
    )


def test_errors():
    assert "expected a second bottom, or a height and width of at least 1, got 3 and 0" in error_of(
        layer("Resample", "height: 3"), x=(1, 1, 4, 4)
    )
    assert "expected type NEAREST, LINEAR or CUBIC, got AREA" in error_of(
        layer("Resample", "type: AREA"), x=(1, 1, 4, 4)
    )
    assert "expected bottoms of 4 axes (N, C, H, W), got (1, 4)" in error_of(layer("Resample", "height: 3"), x=(1, 4))
    assert "expected a top of at least 2 x 2 pixels" in error_of(
        layer("Downsample", "top_height: 1 top_width: 3"), x=(1, 1, 4, 4)
    )
    assert "expected two bottoms at least with have_reference" in error_of(
        layer("Accum", "have_reference: true"), x=(1, 1, 4, 4)
    )
    assert "expected bottoms (N, C, H, W) of one N, got (1, 1, 4, 4), (2, 1, 4, 4)" in error_of(
        layer("Accum", "", ("x", "a")), x=(1, 1, 4, 4), a=(2, 1, 4, 4)
    )
