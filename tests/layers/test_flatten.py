import numpy as np
import pytest

from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(6)


def layer(params=""):
    return f'layer {{ name: "layer" type: "Flatten" bottom: "x" top: "y" flatten_param {{ {params} }} }}'


@golden("flatten", "flatten_axes")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "params, shape",
    [("", (2, 60)), ("axis: 0", (120,)), ("axis: 1 end_axis: -2", (2, 12, 5)), ("axis: -1", (2, 3, 4, 5))],
)
def test_forward_and_gradients(params, shape):
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(layer(params), x=x).blobs["y"].data, x.reshape(shape))
    check_gradients(net_text(layer(params), x=x.shape), {"x": x}, samples=10)


def test_what_a_kernel_has_blocked():
    text = """
    layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 16 kernel_size: 1
            weight_filler { type: "gaussian" } } }
    layer { name: "flat" type: "Flatten" bottom: "c" top: "y" }
    """
    x = RANDOM.normal(size=(2, 16, 3, 3)).astype(np.float32)
    net = run(text, x=x)
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["c"].data.reshape(2, -1))
    check_gradients(net_text(text, x=x.shape), {"x": x}, samples=10)


def test_errors():
    assert "axis 4 is out of range for a blob of 4 axes" in error_of(layer("axis: 4"), x=(2, 3, 4, 5))
    assert "expected end_axis at or after axis, got axis 2 and end_axis 1" in error_of(
        layer("axis: 2 end_axis: 1"), x=(2, 3, 4, 5)
    )
