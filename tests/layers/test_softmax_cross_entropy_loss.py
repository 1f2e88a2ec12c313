import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(32)


def layer(params="", tops='top: "y"'):
    return f'layer {{ name: "layer" type: "SoftmaxCrossEntropyLoss" bottom: "x" bottom: "t" {tops} {params} }}'


def sample(shape):
    """Returns scores, and targets whose sum over the classes is 1."""
    targets = RANDOM.uniform(size=shape)
    return RANDOM.normal(size=shape).astype(np.float32), (targets / targets.sum(1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3, 2)])
@pytest.mark.parametrize("mode", ["BATCH_SIZE", "VALID"])
def test_forward_and_gradients(shape, mode):
    x, targets = sample(shape)
    exponents = np.exp(x.astype(np.float64))
    probabilities = exponents / exponents.sum(1, keepdims=True)
    text = layer("" if mode == "BATCH_SIZE" else "loss_param { normalization: VALID }", 'top: "y" top: "p"')
    net = run(text, x=x, t=targets)
    divisor = shape[0] if mode == "BATCH_SIZE" else x.size / shape[1]
    np.testing.assert_allclose(net.blobs["y"].data, -(targets * np.log(probabilities)).sum() / divisor, rtol=1e-5)
    np.testing.assert_allclose(net.blobs["p"].data, probabilities, rtol=1e-4)
    check_gradients(net_text(text, x=shape, t=shape), {"x": x, "t": targets}, ignore={"p"})


def test_errors():
    message = "expected a target for each score of (3, 5), got (3,); labels: SoftmaxWithLoss"
    assert message in error_of(layer(), x=(3, 5), t=(3,))
