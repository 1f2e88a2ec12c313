import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import (
    check_golden,
    check_gradients,
    error_of,
    golden,
    make_net,
    net_text,
    passes_on,
    run,
    set_top_diff,
)

RANDOM = np.random.default_rng(1)


def layer(param, bottom="x"):
    return f'layer {{ name: "layer" type: "Tile" bottom: "{bottom}" top: "y" tile_param {{ {param} }} }}'


@golden("tile")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize(
    "shape, axis", [((7,), 0), ((3, 4), 1), ((2, 3, 4, 50), 0), ((2, 3, 4, 50), 2), ((2, 3, 4), -1)]
)
def test_forward_and_gradients(shape, axis, tiles):
    x, text = RANDOM.normal(size=shape).astype(np.float32), layer(f"axis: {axis} tiles: {tiles}")
    repeats = [tiles if i == axis % len(shape) else 1 for i in range(len(shape))]
    np.testing.assert_array_equal(run(text, x=x).blobs["y"].data, np.tile(x, repeats))
    check_gradients(net_text(text, x=shape), {"x": x})


@pytest.mark.parametrize("length", [5, 8, 16, 21, 29])
def test_rows_of_any_length(length):
    """Rows are read sixteen values at a time, then eight, then those that are left."""
    given = RANDOM.normal(size=(2, 3 * length)).astype(np.float32)
    net = make_net(net_text(layer("axis: 1 tiles: 3"), x=(2, length)))
    net.forward()
    set_top_diff(net, "y", given)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, given.reshape(2, 3, length).sum(1), atol=1e-6)


@pytest.mark.parametrize("isa", ["SSE41", "AVX2"])
def test_rows_on_other_processors(isa):
    """Their registers are smaller, so a vector takes several."""
    assert passes_on(isa, __file__, "any_length")


@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels):
    net = run_blocked(layer("tiles: 2", "c"), c=channels)
    c, y = net.blobs["c"], net.blobs["y"]
    np.testing.assert_array_equal(y.data, np.concatenate([c.data, c.data], 1))
    np.testing.assert_allclose(c.diff, y.diff[:, :channels] + y.diff[:, channels:], rtol=1e-6)


def test_errors():
    assert "layer 'layer' (Tile): expected tiles above 0, got 0" in error_of(layer(""), x=(2, 3))
    assert "axis 2 is out of range" in error_of(layer("tiles: 2 axis: 2"), x=(2, 3))
