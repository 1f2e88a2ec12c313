import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(21)


def layer(kind, bottom="x"):
    return f'layer {{ name: "layer" type: "{kind}" bottom: "{bottom}" top: "y" }}'


def reference(x):
    rows = x.reshape(len(x), -1).astype(np.float64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).reshape(x.shape)


@pytest.mark.parametrize("kind", ["Normalization", "L2Normalization"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3, 2), (4,)])
def test_samples(kind, shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    net = run(layer(kind), x=x)
    np.testing.assert_allclose(net.blobs["y"].data, reference(x), rtol=1e-5)
    assert net.params.get("layer", []) == []
    if len(shape) > 1:  # of a single number only the sign is left, which has no gradient
        check_gradients(net_text(layer(kind), x=shape), {"x": x})


@pytest.mark.parametrize("kind", ["L2Norm", "NormalizationL2"])
@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 1, 1)])
def test_where_forks_agree(kind, shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(run(layer(kind), x=x).blobs["y"].data, reference(x), rtol=1e-5)
    check_gradients(net_text(layer(kind), x=shape), {"x": x})


def test_where_forks_do_not_agree():
    message = error_of(layer("L2Norm"), x=(2, 3, 4, 4))
    assert "forks with a L2Norm scale either each sample or the channels of each position" in message
    assert "(2, 3, 4, 4): give the type Normalization for the first" in message


def test_zeros_stay_zeros():
    assert not run(layer("Normalization"), x=np.zeros((2, 3))).blobs["y"].data.any()


def test_blocked():
    net = run_blocked(layer("Normalization", "c"), c=40)
    np.testing.assert_allclose(net.blobs["y"].data, reference(net.blobs["c"].data), rtol=1e-4, atol=1e-6)
