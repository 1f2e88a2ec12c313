import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text

RANDOM = np.random.default_rng(1)
FILLERS = 'filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "uniform" }'


def layer(param="", bottoms="x", top="y", name="layer"):
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "Scale" {names} top: "{top}" scale_param {{ {FILLERS} {param} }} }}'


def spread(coefficients, axis, rank):
    """Returns the coefficients with axes for those of the bottom from `axis` on, so that they broadcast."""
    return coefficients.reshape(*[1] * axis, *coefficients.shape, *[1] * (rank - axis - coefficients.ndim))


def check_against_reference(net, bottom, axis):
    """Checks the form with one bottom and bias_term."""
    x, y, given = net.blobs[bottom].data, net.blobs["y"].data, net.blobs["y"].diff
    scale, shift = (spread(tensor.get(), axis, x.ndim) for tensor in net.params["layer"])
    np.testing.assert_allclose(y, x * scale + shift, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(net.blobs[bottom].diff, given * scale, rtol=1e-5, atol=1e-6)
    others = tuple(i for i, size in enumerate(scale.shape) if size == 1)
    for tensor, expected in zip(net.params["layer"], (given * x, given), strict=True):
        np.testing.assert_allclose(tensor.diff.get(), expected.sum(others), rtol=1e-4, atol=1e-4)


@golden("scale", "scale_nobias_axis0", "scale_axis2_num2", "scale_two_bottoms")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize(
    "shape, param",
    [
        ((3, 5), ""),
        ((3, 5), "axis: 0"),
        ((2, 3, 4, 5), ""),
        ((2, 3, 4, 5), "axis: 0 num_axes: -1"),
        ((2, 3, 4, 5), "axis: -2 num_axes: 2"),
        ((2, 3, 4, 5), "num_axes: 0"),
        ((6,), "axis: 0"),
    ],
)
@pytest.mark.parametrize("bias", ["true", "false"])
def test_gradients(shape, param, bias):
    text = net_text(layer(f"{param} bias_term: {bias}"), x=shape)
    check_gradients(text, {"x": RANDOM.normal(size=shape)})


@pytest.mark.parametrize("coefficients, axis", [((2, 3), 0), ((3,), 1), ((4, 5), 2), ((2, 3, 4, 5), 0), ((), 1)])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_gradients_of_two_bottoms(coefficients, axis, bias):
    shape = (2, 3, 4, 5)
    text = layer(f"axis: {axis} bias_term: {bias}", "x s")
    if coefficients == ():  # an Input layer cannot make a scalar
        text = 'layer { name: "sum" type: "Reshape" bottom: "s1" top: "s" reshape_param { shape { } } }' + text
    name = "s" if coefficients else "s1"
    text = net_text(text, x=shape, **{name: coefficients or (1,)})
    check_gradients(text, {"x": RANDOM.normal(size=shape), name: RANDOM.normal(size=coefficients or (1,))})


@pytest.mark.parametrize("axis, num_axes", [(1, 1), (2, 2), (3, 1), (1, 2), (0, 2)])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(axis, num_axes, channels):
    net = run_blocked(layer(f"axis: {axis} num_axes: {num_axes} bias_term: true", "c"), c=channels)
    check_against_reference(net, "c", axis)


@pytest.mark.parametrize("bottom", ["x", "c"])
def test_sums_over_large_planes(bottom):
    net = run_blocked(layer("bias_term: true", bottom), size=(2, 3, 30, 31), **({"c": 40} if bottom == "c" else {}))
    check_against_reference(net, bottom, 1)


def test_channels_stay_blocked():
    assert not run_blocked(layer(bottoms="c"), c=40).blobs["y"].tensor.is_plain


@pytest.mark.parametrize("channels", [32, 40])
def test_one_factor_for_each_plane(channels):
    """This is the second half of a squeeze-and-excitation block."""
    factors = RANDOM.normal(size=(2, channels)).astype(np.float32)
    net = run_blocked(layer("axis: 0", "c s"), plain={"s": factors}, c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    assert not y.tensor.is_plain
    planes = factors[:, :, None, None]
    np.testing.assert_allclose(y.data, c.data * planes, rtol=1e-5)
    np.testing.assert_allclose(c.diff, y.diff * planes, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["s"].diff, (y.diff * c.data).sum((2, 3)), rtol=1e-4, atol=1e-4)


def test_in_place():
    """Backward needs the bottom, so a copy of it is kept."""
    apart, within = run_blocked(layer(bottoms="c"), c=40), run_blocked(layer(bottoms="c", top="c"), c=40)
    np.testing.assert_array_equal(within.outputs()["c"], apart.outputs()["y"])
    for name in ("c", "layer"):
        np.testing.assert_array_equal(within.params[name][0].diff.get(), apart.params[name][0].diff.get())


def test_shared_coefficients_add_their_gradients():
    shape, x = (2, 3, 4, 4), RANDOM.normal(size=(2, 3, 4, 4))
    layers = [layer(name=f"layer{i}", top=f"y{i}") for i in range(2)]
    text = "".join(text.replace("scale_param", 'param { name: "s" } scale_param') for text in layers)
    check_gradients(net_text(text, x=shape), {"x": x})


def test_default_is_the_identity():
    text = 'layer { name: "layer" type: "Scale" bottom: "x" top: "y" scale_param { bias_term: true } }'
    net = make_net(net_text(text, x=(2, 3)))
    assert [tensor.get().tolist() for tensor in net.params["layer"]] == [[1, 1, 1], [0, 0, 0]]


def test_errors():
    assert "expected num_axes -1 or up to 1 from axis 1 of (2, 3), got 2" in error_of(layer("num_axes: 2"), x=(2, 3))
    assert "expected a second bottom shaped as the first from axis 1 on, (3,), got (4,)" in error_of(
        layer(bottoms="x s"), x=(2, 3), s=(4,)
    )
    assert "axis 2 is out of range" in error_of(layer("axis: 2"), x=(2, 3))
