import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(1)


def layer(params, kind="Correlation"):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "a" bottom: "b" top: "y" correlation_param {{ {params} }} }}'


def reference(a, b, pads, kernel, reaches, stride, displacements, subtract=False):
    """Computes the layer. `pads` and `reaches` are those of rows and columns. b is surrounded by zeros as far as
    displacements reach."""
    n, channels = a.shape[:2]
    around = 9
    a, b = (np.pad(x, ((0, 0), (0, 0), *((pad + around, pad + around) for pad in pads))) for x in (a, b))
    radius = (kernel - 1) // 2
    spatial = [size - 2 * around for size in a.shape[2:]]
    top = [-(-(size - 2 * (reach + radius)) // stride) for size, reach in zip(spatial, reaches)]
    y = np.zeros((n, len(displacements), *top))
    for d, (down, across) in enumerate(displacements):
        for i, j in np.ndindex(*top):
            row, column = (around + at * stride + reach for at, reach in zip((i, j), reaches))
            first = a[:, :, row : row + kernel, column : column + kernel]
            second = b[:, :, row + down :, column + across :][:, :, :kernel, :kernel]
            terms = np.abs(first - second) if subtract else first * second
            y[:, d, i, j] = terms.sum((1, 2, 3)) / (kernel**2 * channels)
    return y


def grid(radius, step):
    steps = [step * each for each in range(-radius, radius + 1)]
    return [(down, across) for down in steps for across in steps]


@pytest.mark.parametrize(
    "params, pad, kernel, reach, stride, displacements",
    [
        ("kernel_size: 1 max_displacement: 2 pad: 2", 2, 1, 2, 1, grid(2, 1)),
        ("kernel_size: 1 max_displacement: 4 pad: 4 stride_2: 2", 4, 1, 4, 1, grid(2, 2)),
        ("kernel_size: 3 max_displacement: 2 pad: 3 stride_1: 2", 3, 3, 2, 2, grid(2, 1)),
        ("kernel_size: 3 max_displacement: 3 pad: 2 stride_2: 2", 2, 3, 3, 1, grid(1, 2)),
    ],
)
@pytest.mark.parametrize("kind", ["MULTIPLY", "SUBTRACT"])
def test_formula_and_gradients(params, pad, kernel, reach, stride, displacements, kind):
    a, b = RANDOM.normal(size=(2, 2, 3, 6, 7))
    text = layer(f"{params} correlation_type: {kind}")
    expected = reference(a, b, (pad, pad), kernel, (reach, reach), stride, displacements, kind == "SUBTRACT")
    net = run(text, a=a, b=b)
    assert net.blobs["y"].shape == expected.shape
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    if kind == "SUBTRACT":  # steps must not cross the kink where two values are equal
        a, b = np.round(a, 1), np.round(b, 1) + 0.05
        a[a == 0], b[np.abs(b) < 0.04] = 0.1, 0.15
    check_gradients(net_text(text, a=a.shape, b=b.shape), {"a": a, "b": b}, step=5e-3, tolerance=5e-3)


@pytest.mark.parametrize(
    "direction, displacements",
    [
        ("", [(0, each) for each in (-2, 0, 2)]),
        ("single_direction: 1", [(0, 0), (0, 2)]),
        ("single_direction: -1", [(0, -4), (0, -2)]),
    ],
)
def test_along_rows_only(direction, displacements):
    a, b = RANDOM.normal(size=(2, 2, 3, 4, 7))
    text = layer(f"kernel_size: 3 max_displacement: 3 pad: 2 stride_2: 2 {direction}", "Correlation1D")
    expected = reference(a, b, (0, 2), 3, (0, 3), 1, displacements)
    net = run(text, a=a, b=b)
    assert net.blobs["y"].shape == expected.shape
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(text, a=a.shape, b=b.shape), {"a": a, "b": b})


@pytest.mark.parametrize(
    "params, message",
    [
        ("kernel_size: 2 max_displacement: 1", "an odd kernel_size and max_displacement, got kernel_size 2 and 1"),
        ("kernel_size: 3", "got kernel_size 3 and no max_displacement"),
        ("kernel_size: 1 max_displacement: 1 stride_2: 0", "expected stride_1 and stride_2 of at least 1, got 1 and 0"),
        ("kernel_size: 3 max_displacement: 3", "of 3, displaced by 3, that fit into (1, 2, 8, 9) with pad 0"),
    ],
)
def test_errors(params, message):
    shape = (1, 2, 8, 9)
    assert message in error_of(layer(params), a=shape, b=shape)


def test_wrong_shapes():
    assert "expected two bottoms of one shape (N, C, H, W), got (1, 2, 8, 9) and (1, 3, 8, 9)" in error_of(
        layer("kernel_size: 1 max_displacement: 1"), a=(1, 2, 8, 9), b=(1, 3, 8, 9)
    )
