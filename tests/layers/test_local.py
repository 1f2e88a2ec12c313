import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(2)
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'


def layer(params, kind="Local"):
    param = f"local_param {{ num_output: 4 {FILLERS} {params} }}"
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" top: "y" {param} }}'


@pytest.mark.parametrize("kind", ["Local", "LocallyConnected"])
@pytest.mark.parametrize(
    "params, kernel, stride, pad",
    [
        ("kernel_size: 3", 3, 1, 0),
        ("kernel_size: 3 stride: 2 pad: 1", 3, 2, 1),
        ("kernel_size: 2 bias_term: false", 2, 1, 0),
    ],
)
def test_formula_and_gradients(params, kernel, stride, pad, kind):
    x = RANDOM.normal(size=(2, 3, 5, 6)).astype(np.float32)
    net = run(layer(params, kind), x=x)
    weights, *bias = (tensor.get() for tensor in net.params["layer"])
    y = net.blobs["y"].data
    height, width = y.shape[2:]
    assert weights.shape == (4, 1, 3 * kernel**2, height * width) and all(
        b.shape == (1, 1, 4, height * width) for b in bias
    )
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))).astype(np.float64)
    for row, column in np.ndindex(height, width):
        window = padded[:, :, row * stride :, column * stride :][:, :, :kernel, :kernel].reshape(2, -1)
        at = row * width + column
        expected = window @ weights[:, 0, :, at].T + (bias[0][0, 0, :, at] if bias else 0)
        np.testing.assert_allclose(y[:, :, row, column], expected, rtol=1e-4, atol=1e-5)
    check_gradients(net_text(layer(params, kind), x=x.shape), {"x": x})


def test_errors():
    for params, shape, message in (
        ("kernel_size: 7 pad: 1", (1, 2, 4, 9), "got a kernel of 7 over (1, 2, 4, 9) with pad 1"),
        ("", (1, 2, 4, 4), "expected num_output, kernel_size and stride of at least 1, got 4, 0 and 1"),
        ("kernel_size: 1", (2, 3), "expected a bottom of 4 axes (N, C, H, W), got (2, 3)"),
    ):
        assert message in error_of(layer(params), x=shape)
