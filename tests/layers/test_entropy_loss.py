import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(43)


def layer(params="", tops='top: "y"', weight=1):
    return f'layer {{ name: "layer" type: "EntropyLoss" bottom: "x" {tops} loss_weight: {weight} {params} }}'


def reference(x, axis):
    """Returns the entropy at each position, and the probabilities."""
    exponents = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    p = exponents / exponents.sum(axis, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(axis), p


SHAPES = [((3, 5), 1), ((2, 4, 3, 2), 1), ((2, 3, 2, 4), -1), ((4, 3), 0), ((2, 7, 40, 33), 1), ((3, 1), 1)]


@pytest.mark.parametrize("shape, axis", SHAPES)
def test_forward_and_gradients(shape, axis):
    x = RANDOM.normal(size=shape).astype(np.float32)
    entropies, p = reference(x, axis)
    text = layer(f"softmax_param {{ axis: {axis} }}", 'top: "y" top: "p"', weight="2 loss_weight: 0")
    net = run(text, x=x)
    np.testing.assert_allclose(net.blobs["y"].data, entropies.mean(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(net.blobs["p"].data, p, rtol=1e-4, atol=1e-7)
    net.backward()
    expected = -2 / entropies.size * p * (np.log(p) + np.expand_dims(entropies, axis))
    np.testing.assert_allclose(net.blobs["x"].diff, expected, atol=2e-6 / entropies.size)
    if x.size < 1000:
        check_gradients(net_text(text, x=shape), {"x": x}, ignore={"p"})


@pytest.mark.parametrize(
    "params, divisor",
    [
        ("", 12),
        ("normalize: true", 12),
        ("normalize: false", 2),
        ("normalization: FULL", 12),
        ("normalization: BATCH_SIZE", 2),
        ("normalization: NONE", 1),
    ],
)
def test_normalization(params, divisor):
    x = RANDOM.normal(size=(2, 4, 3, 2)).astype(np.float32)
    text = layer(f"loss_param {{ {params} }}", weight=-0.5)  # a negative weight, which maximises the entropy
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, reference(x, 1)[0].sum() / divisor, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape), {"x": x})


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 2, 2)])
def test_certain(shape):
    """Probabilities of 0 add nothing to the loss and have no gradient."""
    x = np.zeros(shape, np.float32)
    x[:, 1] = 1000
    net = run(layer(), x=x)
    net.backward()
    assert net.blobs["y"].data == 0 and not net.blobs["x"].diff.any()


def test_nan_shows():
    x = RANDOM.normal(size=(2, 3, 2)).astype(np.float32)
    x[1, 1, 1] = np.nan
    assert np.isnan(run(layer(), x=x).blobs["y"].data)


def test_errors():
    assert "has no axis 2, of the classes" in error_of(layer("softmax_param { axis: 2 }"), x=(2, 3))
    ignoring = layer("loss_param { ignore_label: 2 }")
    assert "expected no ignore_label: there are no labels" in error_of(ignoring, x=(2, 3))
