import numpy as np
import pytest

from tests.layers.blocked import run_blocked
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run, set_top_diff

RANDOM = np.random.default_rng(1)
REFERENCE = {
    "SUM": lambda x, axes: x.sum(axes),
    "ASUM": lambda x, axes: np.abs(x).sum(axes),
    "SUMSQ": lambda x, axes: (x**2).sum(axes),
    "MEAN": lambda x, axes: x.mean(axes),
}


def layer(param="", bottom="x"):
    return f'layer {{ name: "layer" type: "Reduction" bottom: "{bottom}" top: "y" reduction_param {{ {param} }} }}'


def away_from_zero(shape):
    return (RANDOM.uniform(0.1, 1, shape) * RANDOM.choice([-1, 1], shape)).astype(np.float32)


@golden("reduction_asum", "reduction_mean", "reduction_sum", "reduction_sumsq")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("operation", REFERENCE)
@pytest.mark.parametrize("shape, axis", [((7,), 0), ((3, 4, 5), 1), ((2, 3, 4, 5), -1), ((2, 5000), 1), ((2, 5000), 0)])
def test_forward_and_gradients(operation, shape, axis):
    x, text = away_from_zero(shape), layer(f"operation: {operation} axis: {axis} coeff: -1.5")
    y = run(text, x=x).blobs["y"].data
    expected = -1.5 * REFERENCE[operation](x.astype(np.float64), tuple(range(len(shape)))[axis:])
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-5)
    check_gradients(net_text(text, x=shape), {"x": x}, tolerance=4e-3 if x.size < 1000 else 4e-2)


@pytest.mark.parametrize("operation", REFERENCE)
@pytest.mark.parametrize("channels", [32, 40])
def test_blocked(operation, channels):
    net = run_blocked(layer(f"operation: {operation} axis: 1", "c"), c=channels)
    c, given = net.blobs["c"].data, net.blobs["y"].diff.reshape(2, 1, 1, 1)
    np.testing.assert_allclose(net.blobs["y"].data, REFERENCE[operation](c, (1, 2, 3)), rtol=1e-5, atol=1e-4)
    slope = {"SUM": 1, "ASUM": np.sign(c), "SUMSQ": 2 * c, "MEAN": 2 / c.size}[operation]
    np.testing.assert_allclose(net.blobs["c"].diff, np.broadcast_to(slope * given, c.shape), rtol=1e-5)


def test_the_gradient_of_a_magnitude_is_0_at_0():
    net = run(layer("operation: ASUM"), x=np.zeros(3, np.float32))
    set_top_diff(net, "y", np.ones(()))
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, 0)


def test_as_a_loss():
    text = net_text(layer("operation: SUMSQ").replace("reduction_param", "loss_weight: 0.5 reduction_param"), x=(3, 4))
    check_gradients(text, {"x": away_from_zero((3, 4))})


def test_errors():
    assert "layer 'layer' (Reduction): axis 2 is out of range" in error_of(layer("axis: 2"), x=(2, 3))
