import numpy as np
import pytest

from engine.errors import DataError
from tests.layers.harness import check_gradients, error_of, inputs, make_net, net_text, run

RANDOM = np.random.default_rng(4)


def layer(params="", weight=1.5):
    return (
        f'layer {{ name: "layer" type: "CenterLoss" bottom: "x" bottom: "t" top: "y" loss_weight: {weight} '
        f'center_loss_param {{ num_output: 4 center_filler {{ type: "xavier" }} {params} }} }}'
    )


def built(params, x, t, centers, **options):
    net = make_net(net_text(layer(params), x=x.shape, t=t.shape), **options)
    net.params["layer"][0].set(centers.astype(np.float32).reshape(4, -1))
    inputs(net)["x"].set(x)
    inputs(net)["t"].set(t)
    return net


@pytest.mark.parametrize("kind", ["L1", "L2"])
@pytest.mark.parametrize("shape", [(6, 5), (6, 2, 3, 2)])
def test_formula(kind, shape):
    x, t = RANDOM.normal(size=shape), np.array([0, 2, 2, 1, 2, 0])  # no sample is of class 3
    centers = RANDOM.normal(size=(4, *shape[1:]))
    net = built(f'distance_type: "{kind}"', x, t, centers)
    gap = x - centers[t]
    expected = np.abs(gap).sum() / 6 if kind == "L1" else (gap**2).sum() / 12
    np.testing.assert_allclose(net.forward()["y"], expected, rtol=1e-5)
    net.backward()
    slope = np.sign(gap) if kind == "L1" else gap
    np.testing.assert_allclose(net.blobs["x"].diff, 1.5 * slope / 6, rtol=1e-4, atol=1e-6)
    moves = np.stack([-slope[t == c].sum(0) / (1 + (t == c).sum()) for c in range(4)])
    np.testing.assert_allclose(net.params["layer"][0].diff.get(), moves.reshape(4, -1), rtol=1e-4, atol=1e-5)


def test_gradient_of_features():
    x, t = RANDOM.normal(size=(6, 5)), np.array([0, 2, 2, 1, 2, 0])
    text = net_text(layer().replace('bottom: "x"', 'param { lr_mult: 0 } bottom: "x"'), x=x.shape, t=t.shape)
    check_gradients(text, {"x": x, "t": t})


def test_errors():
    assert "expected distance_type L1 or L2, got 'L3'" in error_of(layer('distance_type: "L3"'), x=(2, 3), t=(2,))
    assert "expected axis 1, the only one supported, got 2" in error_of(layer("axis: 2"), x=(2, 3, 4), t=(2,))
    assert "expected 2 labels, one for each sample of (2, 3), got (2, 2)" in error_of(layer(), x=(2, 3), t=(2, 2))
    zero = layer().replace("num_output: 4", "")
    assert "expected num_output above 0, got 0" in error_of(zero, x=(2, 3), t=(2,))
    with pytest.raises(DataError, match="label 4 at position 0 is outside"):
        run(layer(), x=np.ones((1, 3)), t=np.array([4]))
