import numpy as np
import pytest

from engine import proto
from tests.layers.harness import check_gradients, error_of, make_net, net_text

RANDOM = np.random.default_rng(77)
SHAPE = (2, 3, 4, 5)
TRAINED = (1, 3, 7, 9)  # shape of the mean in a file of weights, that of the pictures of its training


def layer(params):
    return (
        'layer { name: "layer" type: "DataAugmentation" bottom: "x" top: "y" coeff_schedule_param { half_life: 5 } '
        f"augmentation_param {{ {params} }} }}"
    )


def of_net(params, x, *means):
    """Returns the top in phase TEST, with a file's count and means."""
    net = make_net(net_text(layer(params), x=x.shape), proto.TEST)
    if means:
        net.load_weights({"layer": [np.full((1, 1, 1, 1), 5000, np.float32), *means]}, "weights")
    net.blobs["x"].set(x)
    return net.forward()["y"]


@pytest.mark.parametrize("of_pixels", [False, True])
def test_the_mean_of_a_file(of_pixels):
    x = RANDOM.normal(size=SHAPE).astype(np.float32)
    pixels = RANDOM.normal(size=(1, *SHAPE[1:]) if of_pixels else TRAINED).astype(np.float32)
    channels = RANDOM.normal(size=(1, 3, 1, 1)).astype(np.float32)
    params = f"recompute_mean: 1000 mean_per_pixel: {str(of_pixels).lower()} rotate {{ mean: 1 }} max_multiplier: 1"
    y = of_net(params, x, pixels, channels)
    np.testing.assert_allclose(y, x - (pixels if of_pixels else channels), rtol=1e-6, atol=1e-6)


def test_pixels_of_another_size():
    from engine.errors import WeightsError

    x = np.zeros(SHAPE, np.float32)
    with pytest.raises(WeightsError, match="layer 'layer', blob 1: the file has 1 x 3 x 7 x 9"):
        of_net("recompute_mean: 1", x, np.zeros(TRAINED, np.float32), np.zeros((1, 3, 1, 1), np.float32))


def test_given_means():
    x = RANDOM.normal(size=SHAPE).astype(np.float32)
    y = of_net("mean: 1 mean: 2 mean: 3 mean_per_pixel: false crop_width: 5 crop_height: 4", x)
    np.testing.assert_allclose(y, x - np.reshape([1, 2, 3], (1, 3, 1, 1)), rtol=1e-6, atol=1e-6)
    # mean_per_pixel is true by default, so the means are not read
    np.testing.assert_array_equal(of_net("mean: 1 mean: 2 mean: 3", x), x)
    check_gradients(net_text(layer("mean: 1 mean: 2 mean: 3 mean_per_pixel: false"), x=SHAPE), {"x": x})


@pytest.mark.parametrize(
    "params, phase, message",
    [
        ("recompute_mean: 10", proto.TRAIN, "expected the TEST phase without augment_during_test"),
        ("augment_during_test: true", proto.TEST, "expected the TEST phase without augment_during_test"),
        ("crop_width: 3 crop_height: 4", proto.TEST, r"bottom's, (4, 5), got (4, 3); a layer of type Crop"),
        ("mean: 1 mean_per_pixel: false", proto.TEST, "expected a mean for each of the 3 channels, got 1"),
    ],
)
def test_errors(params, phase, message):
    assert message in error_of(layer(params), phase, x=SHAPE)


def test_bottom_error():
    assert "expected a bottom (N, C, H, W), got (2, 3)" in error_of(layer(""), x=(2, 3))
