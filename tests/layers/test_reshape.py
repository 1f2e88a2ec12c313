import numpy as np
import pytest

from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(7)


def layer(dims, params=""):
    dims = " ".join(f"dim: {dim}" for dim in dims)
    param = f"reshape_param {{ shape {{ {dims} }} {params} }}"
    return f'layer {{ name: "layer" type: "Reshape" bottom: "x" top: "y" {param} }}'


@golden("reshape", "reshape_axis")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "dims, params, shape",
    [
        ((4, 30), "", (4, 30)),
        ((0, -1), "", (2, 60)),
        ((0, 0, -1), "", (2, 3, 20)),
        ((-1,), "axis: 1", (2, 60)),
        ((2, -1), "axis: 2 num_axes: 1", (2, 3, 2, 2, 5)),
        ((1,), "axis: -1", (2, 3, 4, 5, 1)),
        ((1, 1), "axis: 1 num_axes: 0", (2, 1, 1, 3, 4, 5)),
        ((-1, 10), "axis: -3", (2, 3, 2, 10)),
    ],
)
def test_forward_and_gradients(dims, params, shape):
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    net = run(layer(dims, params), x=x)
    np.testing.assert_array_equal(net.blobs["y"].data, x.reshape(shape))
    check_gradients(net_text(layer(dims, params), x=x.shape), {"x": x}, samples=10)


@pytest.mark.parametrize(
    "dims, params, message",
    [
        ((4, 31), "", "expected 120 values as in (2, 3, 4, 5), got 124 in (4, 31)"),
        ((7, -1), "", "the -1 in [7, -1] cannot be inferred: (2, 3, 4, 5) is not divisible by 7"),
        ((-1, -1), "", "at most one -1, got [-1, -1]"),
        ((0, 0, 0, 0, 0), "", "dim 4 of [0, 0, 0, 0, 0] copies axis 4, but the bottom is (2, 3, 4, 5)"),
        ((1,), "axis: 5", "axis 5 with num_axes -1 is out of range for 4 axes"),
        ((1,), "axis: 3 num_axes: 2", "axis 3 with num_axes 2 is out of range for 4 axes"),
    ],
)
def test_errors(dims, params, message):
    assert message in error_of(layer(dims, params), x=(2, 3, 4, 5))
