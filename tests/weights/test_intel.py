import numpy as np
import pytest

from engine.config import parse_net
from engine.errors import WeightsError
from engine.net import Net

BATCH_NORM = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 5 dim: 6 } } }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" }
"""
SCALE = 'layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }'


def merged():
    generator = np.random.default_rng(22)
    blobs = [generator.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4)]
    return [*blobs[:2], np.array([4], np.float32), *blobs[2:]]


def net_of(text):
    return Net(parse_net(text, "test.prototxt"), phase=1)


def test_five_blobs_become_two_layers():
    net, blobs = net_of(BATCH_NORM + SCALE), merged()
    assert net.load_weights({"bn": blobs}, "file") == []
    for name, expected in (("bn", blobs[:3]), ("scale", blobs[3:])):
        for ours, theirs in zip(net.params[name], expected, strict=True):
            np.testing.assert_array_equal(ours.get(), theirs)
    x = np.random.default_rng(23).normal(size=(4, 3, 5, 6)).astype(np.float32)
    net.blobs["x"].set(x)
    mean, variance, factor, scale, shift = (blob.reshape(-1, 1, 1) for blob in blobs)
    expected = (x - mean / factor) / np.sqrt(variance / factor + 1e-5) * scale + shift
    np.testing.assert_allclose(net.forward()["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("phase", [0, 1])
def test_five_blobs_where_layers_are_of_one_phase(phase):
    bn = 'layer { name: "bn" type: "BatchNorm" bottom: "y" top: "y" include { phase: %s } }'
    silence = 'layer { name: "silence" type: "Silence" bottom: "y" include { phase: %s } }'
    before = BATCH_NORM.replace('"bn"', '"first"') + bn % "TRAIN" + bn % "TEST"
    text = before + silence % ("TEST", "TRAIN")[phase] + SCALE
    net, blobs = Net(parse_net(text), phase), merged()
    net.load_weights({"bn": blobs}, "file")
    np.testing.assert_array_equal(net.params["scale"][1].get(), blobs[4])


def test_three_blobs_are_left_alone():
    net, blobs = net_of(BATCH_NORM + SCALE), merged()
    assert net.load_weights({"bn": blobs[:3], "scale": blobs[3:]}, "file") == []
    np.testing.assert_array_equal(net.params["scale"][1].get(), blobs[4])


RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "z" }'
SCALE_OF_X = SCALE.replace('bottom: "y" top: "y"', 'bottom: "x" top: "z"')


@pytest.mark.parametrize("behind", ["", RELU + SCALE.replace('"y"', '"z"'), SCALE_OF_X])
def test_nowhere_to_put_scale_and_shift(behind):
    with pytest.raises(WeightsError, match=r"layer 'bn': the file has scale and shift in it.*expected a Scale"):
        net_of(BATCH_NORM + behind).load_weights({"bn": merged()}, "file")


def test_scale_and_shift_twice():
    with pytest.raises(WeightsError, match=r"layer 'bn': .* in it, and in layer 'scale' again"):
        net_of(BATCH_NORM + SCALE).load_weights({"bn": merged(), "scale": merged()[3:]}, "file")


def test_a_scale_without_a_shift():
    with pytest.raises(WeightsError, match="layer 'scale': the file has 2 blobs, the net 1"):
        net_of(BATCH_NORM + SCALE.replace("bias_term: true", "")).load_weights({"bn": merged()}, "file")
