import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(1)


def layer(bottoms="a x y", top="z"):
    bottoms = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f'layer {{ name: "layer" type: "Axpy" {bottoms} top: "{top}" }}'


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 17, 3, 4)])
@pytest.mark.parametrize("more", [(), (1, 1)])
def test_forward_and_gradients(shape, more):
    a = RANDOM.normal(size=(*shape[:2], *more)).astype(np.float32)
    x, y = RANDOM.normal(size=(2, *shape)).astype(np.float32)
    z = run(layer(), a=a, x=x, y=y).blobs["z"].data
    np.testing.assert_allclose(z, a.reshape(*shape[:2], *[1] * (len(shape) - 2)) * x + y, rtol=1e-5, atol=1e-6)
    check_gradients(net_text(layer(), a=a.shape, x=shape, y=shape), {"a": a, "x": x, "y": y})


@pytest.mark.parametrize("top", ["z", "d"])
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(channels, top):
    """As at the end of a residual block, also in place of the bottom that is added."""
    a = RANDOM.normal(size=(2, channels, 1, 1)).astype(np.float32)
    net = run_blocked(layer("a c d", top), plain={"a": a}, c=channels, d=channels)
    c, z = net.blobs["c"], net.blobs[top]
    assert not z.tensor.is_plain
    np.testing.assert_allclose(c.diff, a * z.diff, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["a"].diff, (c.data * z.diff).sum((2, 3), keepdims=True), rtol=1e-4, atol=1e-4)
    if top == "z":
        np.testing.assert_allclose(z.data, a * c.data + net.blobs["d"].data, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(net.blobs["d"].diff, z.diff)


def test_errors():
    shape = (2, 3, 4, 5)
    name = "layer 'layer' (Axpy): "
    for wrong in ((2, 4), (3, 3), (2, 3, 4, 5)):
        assert (
            name + f"expected a first bottom (2, 3) or (2, 3, 1, 1) for a second one {shape}, got {wrong}"
            in error_of(layer(), a=wrong, x=shape, y=shape)
        )
    assert name + "expected second and third bottoms of one shape" in error_of(layer(), a=(2, 3), x=shape, y=(2, 3))
