import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(10)


def layer(params="factor: 8"):
    return f'layer {{ name: "layer" type: "ImResize" bottom: "x" top: "y" imresize_param {{ {params} }} }}'


def between(values, x):
    """Interpolates by the fork's cubic through four values, x from the second."""
    a, b, c, d = values
    third, square = -a / 2 + 1.5 * b - 1.5 * c + d / 2, a - 2.5 * b + 2 * c - d / 2
    return third * x**3 + square * x**2 + (c - a) / 2 * x + b


def line(x, size):
    """Resizes along the first axis."""
    pixels = len(x)
    result = []
    for i in range(size):
        at = (i - (size / pixels / 2 - 0.5)) * pixels / size
        low = max(int(at + 1e-5), 0)
        neighbours = [x[min(max(low + j, 0), pixels - 1)] for j in (-1, 0, 1, 2)]
        result.append(between(neighbours, at - low))
    return np.array(result)


def reference(x, height, width, start=1.0, gap=0.1):
    total = np.zeros((1, x.shape[1], height, width))
    for n, image in enumerate(x.astype(np.float64)):
        down, across = (int(np.floor(np.float32(side // 2) * np.float32(1 - start + n * gap))) for side in x.shape[2:])
        image = image[:, down : x.shape[2] - down, across : x.shape[3] - across]
        rows = np.moveaxis(line(np.moveaxis(image, 1, 0), height), 0, 1)
        total[0] += np.moveaxis(line(np.moveaxis(rows, 2, 0), width), 0, 2)
    return total / len(x)


@pytest.mark.parametrize(
    "params, size, top, scales",
    [
        ("factor: 8", (1, 2, 5, 6), (40, 48), ()),
        ("factor: 1", (1, 2, 5, 6), (5, 6), ()),
        ("factor: 1.5", (1, 2, 5, 7), (7, 10), ()),
        ("factor: 0.5", (1, 1, 8, 6), (4, 3), ()),
        ("target_spatial_width: 9 target_spatial_height: 4", (1, 3, 5, 7), (4, 9), ()),
        ("factor: 2", (1, 2, 2, 1), (4, 2), ()),
        ("factor: 2", (2, 2, 22, 24), (44, 48), ()),
        ("factor: 2 scale_gap: 0.3", (3, 2, 12, 14), (24, 28), (1, 0.3)),
        ("factor: 2 start_scale: 0.8 scale_gap: 0.25", (2, 2, 12, 14), (24, 28), (0.8, 0.25)),
    ],
)
def test_forward_and_gradients(params, size, top, scales):
    x = RANDOM.normal(size=size).astype(np.float32)
    y = run(layer(params), x=x).blobs["y"].data
    np.testing.assert_allclose(y, reference(x, *top, *scales), rtol=1e-4, atol=1e-5)
    check_gradients(net_text(layer(params), x=size), {"x": x})


def test_same_size_is_the_same():
    x = RANDOM.normal(size=(1, 3, 6, 9)).astype(np.float32)
    np.testing.assert_allclose(run(layer("factor: 1"), x=x).blobs["y"].data, x, rtol=1e-6)


@pytest.mark.parametrize("images", [1, 2])
def test_blocked(images):
    text = layer("factor: 2").replace('bottom: "x"', 'bottom: "c"')
    net = run_blocked(text, size=(images, 3, 9, 14), c=40)
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data, 18, 28), rtol=1e-4, atol=1e-4)
    plain = run(layer("factor: 2"), x=net.blobs["c"].data)
    set_top_diff(plain, "y", net.blobs["y"].diff)
    plain.backward()
    np.testing.assert_allclose(net.blobs["c"].diff, plain.blobs["x"].diff, rtol=1e-4, atol=1e-4)


def test_errors():
    assert "layer 'layer' (ImResize): expected a bottom (N, C, H, W), got (2, 3)" in error_of(layer(), x=(2, 3))
    message = error_of(layer("factor: 0.1"), x=(1, 1, 5, 20))
    assert "expected a top of at least 1 x 1 pixels, got 0 x 2" in message
    message = error_of(layer("factor: 2 scale_gap: 0.5"), x=(3, 1, 8, 8))
    assert "expected scales above 0 and up to 1, start_scale less 0 to 2 times scale_gap, got 1 and 0.5" in message
    assert "got 1.5 and 0.1" in error_of(layer("factor: 2 start_scale: 1.5"), x=(1, 1, 8, 8))
    # the last scale would be -0.1
    assert "got 1 and 0.55" in error_of(layer("factor: 2 scale_gap: 0.55"), x=(3, 1, 9, 9))
    assert "got 1.5 and 0.1" in error_of(layer("factor: 2 start_scale: 1.5"), x=(1, 1, 1, 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("factor: 3e38", "top 'y' would be 1 x 1 x 2147483648 x 2147483648"),
        ("factor: -3e38", "expected a top of at least 1 x 1 pixels"),
        ("scale_gap: 3e38", "got 1 and 3e+38"),
        ("scale_gap: -3e38", "got 1 and -3e+38"),
    ],
)
def test_numbers_without_end(params, message):
    assert message in error_of(layer(params), x=(3, 1, 6, 6))
