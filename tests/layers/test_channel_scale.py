import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run, set_top_diff

RANDOM = np.random.default_rng(12)


def layer(params=""):
    param = f"channel_scale_param {{ {params} }}"
    return f'layer {{ name: "layer" type: "ChannelScale" bottom: "x" bottom: "s" top: "y" {param} }}'


@pytest.mark.parametrize("shape, scale", [((3, 4), (3,)), ((3, 4), (3, 1)), ((2, 3, 4, 5), (2, 1, 4, 5))])
def test_formula_and_gradients(shape, scale):
    x, s = RANDOM.normal(size=shape), RANDOM.normal(size=scale)
    expected = x * s.reshape(shape[0], 1, *shape[2:])
    np.testing.assert_allclose(run(layer(), x=x, s=s).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(layer(), x=shape, s=scale), {"x": x, "s": s})


@pytest.mark.parametrize("fields", ["do_backward_scale: false", ""])
def test_a_scale_without_a_gradient(fields):
    x, s = RANDOM.normal(size=(3, 4)), RANDOM.normal(size=(3,))
    net = run(layer(fields), x=x, s=s)
    set_top_diff(net, "y", np.ones((3, 4)))
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, np.repeat(s[:, None], 4, 1), rtol=1e-5)
    diff = net.blobs["s"].diff
    assert (diff is not None and diff.any()) == (fields == "")


def test_the_name_of_pspnets_fork():
    x, s = RANDOM.normal(size=(2, 3, 4, 5)), RANDOM.normal(size=(2, 1, 4, 5))
    text = 'layer { name: "layer" type: "SpatialProduct" bottom: "x" bottom: "s" top: "y" }'
    np.testing.assert_allclose(run(text, x=x, s=s).blobs["y"].data, x * s, rtol=1e-5)


def test_errors():
    assert "expected a scale of one number for each position of (3, 4), got (3, 4)" in error_of(
        layer(), x=(3, 4), s=(3, 4)
    )
    for params in ("global_scale: true", "do_forward: false", "do_backward_feature: false"):
        assert "expected neither global_scale, nor do_forward" in error_of(layer(params), x=(3, 4), s=(3,))
