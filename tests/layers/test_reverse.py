import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run


def layer(params="", kind="Reverse"):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "x" top: "y" reverse_param {{ {params} }} }}'


@pytest.mark.parametrize("kind", ["Reverse", "ReverseAxis"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_formula_and_gradients(kind, axis):
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    text = layer("" if axis is None else f"axis: {axis}", kind)
    np.testing.assert_array_equal(run(text, x=x).blobs["y"].data, np.flip(x, axis or 0))
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_errors():
    assert "axis 2 is out of range for a blob of 2 axes" in error_of(layer("axis: 2"), x=(2, 3))
