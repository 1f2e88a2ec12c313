import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

LAYER = 'layer { name: "layer" type: "ChannelNorm" bottom: "x" top: "y" }'


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3)])
def test_formula_and_gradients(shape):
    x = np.random.default_rng(4).normal(size=shape)
    net = run(LAYER, x=x)
    np.testing.assert_allclose(net.blobs["y"].data, np.sqrt((x**2).sum(1, keepdims=True)), rtol=1e-5)
    check_gradients(net_text(LAYER, x=shape), {"x": x})


def test_no_gradient_of_length_0():
    net = run(LAYER, x=np.zeros((2, 3)))
    set_top_diff(net, "y", np.ones((2, 1)))
    net.backward()
    assert not net.blobs["x"].diff.any()


def test_wrong_shape():
    assert "expected a bottom of at least 2 axes (N, C), got (3,)" in error_of(LAYER, x=(3,))
