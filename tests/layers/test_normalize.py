import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run

RANDOM = np.random.default_rng(20)


def layer(params="", bottom="x"):
    return (
        f'layer {{ name: "layer" type: "Normalize" bottom: "{bottom}" top: "y" norm_param {{ {params} '
        'scale_filler { type: "uniform" min: 5 max: 20 } } }'
    )


def reference(x, scale, across, eps=1e-10):
    axes = tuple(range(1, x.ndim)) if across else 1
    x = x.astype(np.float64)
    scale = scale.reshape(-1, *[1] * (x.ndim - 2)) if scale.size > 1 else scale
    return x * scale / np.sqrt((x**2).sum(axes, keepdims=True) + eps)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 6), (1, 8, 1, 1)])
def test_forward_and_gradients(across, shared, shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    params = f"across_spatial: {across} channel_shared: {shared} eps: 0.1".lower()
    net = run(layer(params), x=x)
    (scale,) = net.params["layer"]
    assert scale.get().shape == (() if shared else shape[1:2])
    np.testing.assert_allclose(net.blobs["y"].data, reference(x, scale.get(), across, 0.1), rtol=1e-5)
    check_gradients(net_text(layer(params), x=shape), {"x": x})


def test_zeros_stay_zeros():
    net = run(layer("across_spatial: false"), x=np.zeros((2, 3, 4, 4), np.float32))
    net.set_top_diff("y", np.ones((2, 3, 4, 4)))
    net.backward()
    assert not net.blobs["y"].data.any() and np.isfinite(net.blobs["x"].diff).all()


@pytest.mark.parametrize("across", ["false", "true"])
def test_blocked(across):
    """As conv4_3 in SSD, where a convolution is in front."""
    net = run_blocked(layer(f"across_spatial: {across} channel_shared: false", "c"), c=40)
    expected = reference(net.blobs["c"].data, net.params["layer"][0].get(), across == "true")
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_shared_scales_add_their_gradients():
    text = layer("channel_shared: false").replace("norm_param", 'param { name: "s" } norm_param')
    text += text.replace('"layer"', '"second"').replace('"y"', '"z"')
    check_gradients(net_text(text, x=(2, 3, 4, 4)), {"x": RANDOM.normal(size=(2, 3, 4, 4))})


def test_without_a_filler_the_scale_is_one():
    text = 'layer { name: "layer" type: "Normalize" bottom: "x" top: "y" }'
    assert make_net(net_text(text, x=(2, 3))).params["layer"][0].get() == 1


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))
