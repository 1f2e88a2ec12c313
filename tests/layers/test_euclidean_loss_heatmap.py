import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(47)


def layer(weight="", bottoms=("x", "t"), params=""):
    names = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "layer" type: "EuclideanLossHeatmap" {names} top: "y" {weight} {params} }}'


def sample(shape=(2, 3, 4, 5)):
    return {name: RANDOM.normal(size=shape).astype(np.float32) for name in ("x", "t")}


@pytest.mark.parametrize("pictures", [False, True])
def test_forward(pictures):
    bottoms = sample()
    if pictures:
        bottoms["p"] = RANDOM.normal(size=(2, 3, 8, 8)).astype(np.float32)
    net = run(layer(bottoms=bottoms, params="visualise: false visualise_channel: 2"), **bottoms)
    expected = ((bottoms["x"] - bottoms["t"]).astype(np.float64) ** 2).mean()
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5)


@pytest.mark.parametrize("weight", ["", "loss_weight: 1", "loss_weight: 3"])
def test_the_gradient_is_the_difference(weight):
    bottoms = sample()
    net = run(layer(weight), **bottoms)
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, bottoms["x"] - bottoms["t"], rtol=1e-6, atol=1e-7)


def test_gradients():
    """With a loss_weight of half the count, the difference is the derivative of the loss."""
    bottoms = sample()
    count = bottoms["x"].size
    shapes = {name: values.shape for name, values in bottoms.items()}
    check_gradients(net_text(layer(f"loss_weight: {count / 2}"), **shapes), bottoms)


def test_without_a_weight_there_is_no_gradient():
    net = run(layer("loss_weight: 0"), **sample())
    net.backward()
    diff = net.blobs["x"].diff
    assert diff is None or not diff.any()


def test_errors():
    wanted = "expected predictions (N, C, H, W) and heat maps as large, got "
    assert wanted + "(2, 3, 4, 5) and (2, 3, 4, 4)" in error_of(layer(), x=(2, 3, 4, 5), t=(2, 3, 4, 4))
    assert wanted + "(2, 3) and (2, 3)" in error_of(layer(), x=(2, 3), t=(2, 3))
    rooms = error_of(layer(bottoms=("x", "t", "r")), x=(2, 3, 4, 5), t=(2, 3, 4, 5), r=(2, 1, 1, 1))
    assert "expected pictures as its third bottom, got (2, 1, 1, 1): types of rooms" in rooms
    normalised = layer(params="loss_param { normalization: FULL }")
    message = "normalization (or normalize) has no effect here; take it out of loss_param"
    assert message in error_of(normalised, x=(2, 3, 4, 5), t=(2, 3, 4, 5))
