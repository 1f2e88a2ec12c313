import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run


def layer(params):
    return f'layer {{ name: "layer" type: "Flip" bottom: "x" top: "y" flip_param {{ {params} }} }}'


@pytest.mark.parametrize(
    "params, turned",
    [
        ("", np.s_[:, :, :, ::-1]),
        ("flip_height: true", np.s_[:, :, ::-1, ::-1]),
        ("flip_width: false flip_height: true", np.s_[:, :, ::-1]),
        ("flip_width: false", np.s_[:]),
    ],
)
def test_formula_and_gradients(params, turned):
    x = np.random.default_rng(1).normal(size=(2, 3, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(layer(params), x=x).blobs["y"].data, x[turned])
    check_gradients(net_text(layer(params), x=x.shape), {"x": x})


def test_wrong_shape():
    assert "expected a bottom of 4 axes (N, C, H, W), got (2, 3)" in error_of(layer(""), x=(2, 3))
