import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, make_net, net_text, run, set_top_diff

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
    set_top_diff(net, "y", np.ones((2, 3, 4, 4)))
    net.backward()
    assert not net.blobs["y"].data.any() and np.isfinite(net.blobs["x"].diff).all()


@pytest.mark.parametrize("across", ["false", "true"])
def test_blocked(across):
    """As with conv4_3 in SSD, the bottom is a convolution's top."""
    net = run_blocked(layer(f"across_spatial: {across} channel_shared: false", "c"), c=40)
    expected = reference(net.blobs["c"].data, net.params["layer"][0].get(), across == "true")
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-4, atol=1e-5)


def test_shared_scales_add_their_gradients():
    text = layer("channel_shared: false").replace("norm_param", 'param { name: "s" } norm_param')
    text += text.replace('"layer"', '"second"').replace('"y"', '"z"')
    check_gradients(net_text(text, x=(2, 3, 4, 4)), {"x": RANDOM.normal(size=(2, 3, 4, 4))})


def test_without_a_filler_the_scale_is_one():
    text = 'layer { name: "layer" type: "Normalize" bottom: "x" top: "y" norm_param {} }'
    assert make_net(net_text(text, x=(2, 3))).params["layer"][0].get() == 1


def test_errors():
    assert "expected a bottom of at least 2 axes (N, C), got (4,)" in error_of(layer(), x=(4,))


def unit_layer(params="", top='top: "y"', bottom="x"):
    param = f"normalize_param {{ {params} }}" if params is not None else ""
    return f'layer {{ name: "layer" type: "Normalize" bottom: "{bottom}" {top} {param} }}'


@pytest.mark.parametrize("kind", ["L1", "L2"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3, 2)])
def test_happynears(kind, shape):
    x = np.random.default_rng(2).normal(size=shape)
    x[np.abs(x) < 0.05] = 0.1
    text = unit_layer(f'normalize_type: "{kind}" bp_norm: true', 'top: "y" top: "length"')
    net = run(text, x=x)
    length = np.abs(x).sum(1) + 1e-6 if kind == "L1" else np.sqrt((x**2).sum(1) + 1e-6)
    np.testing.assert_allclose(net.blobs["y"].data, x / length[:, None], rtol=1e-4, atol=1e-6)
    assert net.blobs["length"].shape == (shape[0], 1, *shape[2:])
    np.testing.assert_allclose(net.blobs["length"].data[:, 0], length, rtol=1e-5)
    assert net.params.get("layer", []) == []
    check_gradients(net_text(text, x=shape), {"x": x})


def test_the_gradient_of_lengths_counts_where_it_is_asked_for():
    x = np.random.default_rng(2).normal(size=(3, 5))
    net = run(unit_layer("", 'top: "y" top: "length"'), x=x)
    assert net.blobs["y"].diff is not None and net.blobs["length"].diff is None


def test_caffe_faces():
    """Caffe-face's layer has no parameters and normalises each sample as a whole."""
    x = np.random.default_rng(2).normal(size=(3, 2, 4, 2))
    net = run(unit_layer(None), x=x)
    np.testing.assert_allclose(net.blobs["y"].data, x / np.sqrt((x**2).sum((1, 2, 3), keepdims=True)), rtol=1e-4)
    check_gradients(net_text(unit_layer(None), x=x.shape), {"x": x})
    assert not run(unit_layer(None), x=np.zeros((2, 3))).blobs["y"].data.any()


def test_errors_of_the_forms():
    assert "expected either norm_param (SSD's) with one top, or normalize_param" in error_of(
        unit_layer().replace("normalize_param", "norm_param {} normalize_param"), x=(2, 3)
    )
    assert "expected normalize_type L1 or L2, got 'L3'" in error_of(unit_layer('normalize_type: "L3"'), x=(2, 3))
    assert "expected no fix_gradient" in error_of(unit_layer("fix_gradient: true"), x=(2, 3))
