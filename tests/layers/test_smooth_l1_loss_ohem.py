import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(15)


def layer(bottoms="abw", more="", tops=("loss", "each")):
    names = " ".join(f'bottom: "{name}"' for name in bottoms) + "".join(f' top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "SmoothL1LossOHEM" {names} {more} }}'


def bottoms(shape):
    a, b = 2 * RANDOM.normal(size=(2, *shape)).astype(np.float32)
    return {"a": a, "b": b, "w": RANDOM.integers(0, 2, shape).astype(np.float32)}


def reference(a, b, w=1.0):
    d = np.abs(w * (a - b).astype(np.float64))
    return np.where(d < 1, d**2 / 2, d - 0.5)


@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize("names", ["ab", "abw"])
def test_forward_and_gradients(shape, names):
    values = {name: value for name, value in bottoms(shape).items() if name in names}
    net = run(layer(names), **values)
    expected = reference(*values.values())
    spatial = shape[2:] or (1, 1)
    each = expected.sum(1).reshape(shape[0], 1, *spatial)
    np.testing.assert_allclose(net.blobs["each"].data, each, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["loss"].data, expected.sum() / (shape[0] * np.prod(spatial)), rtol=1e-5)
    shapes = dict.fromkeys(values, shape)
    text = net_text(layer(names, "loss_weight: 1.5", ("loss",)), **shapes)
    check_gradients(text, values, step=2e-3, tolerance=1e-2)


@pytest.mark.parametrize(
    "normalization, divisor",
    [
        ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: FULL", 40),
        ("normalization: NONE", 1),
    ],
)
def test_normalization(normalization, divisor):
    values = bottoms((2, 3, 4, 5))
    loss = run(layer(more=f"loss_param {{ {normalization} }}"), **values).blobs["loss"].data
    np.testing.assert_allclose(loss, reference(*values.values()).sum() / divisor, rtol=1e-5)


def test_errors():
    message = error_of(layer(), a=(2, 3), b=(2, 3), w=(2, 4))
    assert "layer 'layer' (SmoothL1LossOHEM): expected weights of the same count" in message
    assert "expected predictions (N, C, H, W) or (N, C)" in error_of(layer("ab"), a=(2, 3, 4), b=(2, 3, 4))
