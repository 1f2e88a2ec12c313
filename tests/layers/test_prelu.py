import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, make_net, net_text

RANDOM = np.random.default_rng(1)


def layer(param='filler { type: "uniform" min: -1 max: 1 }', bottom="x", top="y", name="layer", more=""):
    return f"""layer {{ name: "{name}" type: "PReLU" bottom: "{bottom}" top: "{top}" {more}
        prelu_param {{ {param} }} }}"""


def away_from_zero(shape):
    return RANDOM.uniform(0.1, 1, shape) * RANDOM.choice([-1, 1], shape)


@golden("prelu", "prelu_shared")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("shared", ["true", "false"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (2, 3, 4, 5), (2, 17, 3, 3), (2, 3, 4, 5, 2)])
def test_gradients(shape, shared):
    text = net_text(layer(f'channel_shared: {shared} filler {{ type: "uniform" min: -1 max: 1 }}'), x=shape)
    check_gradients(text, {"x": away_from_zero(shape)})


@pytest.mark.parametrize("shared", ["true", "false"])
@pytest.mark.parametrize("channels", [32, 40, 5])
def test_blocked(channels, shared):
    net = run_blocked(layer(f'channel_shared: {shared} filler {{ type: "uniform" }}', bottom="c"), c=channels)
    c, y, slopes = net.blobs["c"], net.blobs["y"], net.params["layer"][0]
    assert y.tensor.layout == c.tensor.layout
    slope = slopes.get().reshape(1, -1, 1, 1)
    np.testing.assert_allclose(y.data, np.where(c.data > 0, c.data, slope * c.data), rtol=1e-6)
    np.testing.assert_allclose(c.diff, np.where(c.data > 0, y.diff, slope * y.diff), rtol=1e-6)
    expected = np.where(c.data > 0, 0, c.data * y.diff).sum(None if shared == "true" else (0, 2, 3))
    np.testing.assert_allclose(slopes.diff.get(), expected, rtol=1e-4, atol=1e-4)


def test_in_place():
    apart, within = run_blocked(layer(bottom="c"), c=32), run_blocked(layer(bottom="c", top="c"), c=32)
    np.testing.assert_array_equal(within.outputs()["c"], apart.outputs()["y"])
    for name in ("c", "layer"):
        np.testing.assert_array_equal(within.params[name][0].diff.get(), apart.params[name][0].diff.get())


def test_shared_slopes_add_their_gradients():
    x = away_from_zero((2, 3, 4, 4))
    more = 'param { name: "s" }'
    text = "".join(layer(name=f"layer{i}", top=f"y{i}", more=more) for i in range(2))
    check_gradients(net_text(text, x=x.shape), {"x": x})


def test_slopes_that_do_not_learn():
    x = away_from_zero((2, 3, 4, 4))
    check_gradients(net_text(layer(more="param { lr_mult: 0 }"), x=x.shape), {"x": x})


def test_default_is_a_quarter():
    net = make_net(net_text(layer(param=""), x=(2, 3)))
    assert net.params["layer"][0].get().tolist() == [0.25] * 3


def test_errors():
    assert "layer 'layer' (PReLU): expected a bottom of 2 to 5 axes, got (3,)" in error_of(layer(), x=(3,))
