import numpy as np
import pytest

from engine import proto
from engine.weights.protobuf import fill_blob, write_message
from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(6)


def layer(params, bottoms="x", tops="y"):
    names = " ".join(f'bottom: "{name}"' for name in bottoms) + " " + " ".join(f'top: "{name}"' for name in tops)
    return f'layer {{ name: "layer" type: "Mean" {names} mean_param {{ {params} }} }}'


@pytest.mark.parametrize(
    "params, factor, shift",
    [
        ("operation: SUBTRACT value: 1 value: 2 value: 3", 1, [-1, -2, -3]),
        ("operation: ADD value: 4 mean_scale: 0.5 input_scale: 2 output_scale: 3", 6, [6, 6, 6]),
    ],
)
def test_of_values(params, factor, shift):
    x = RANDOM.normal(size=(2, 6, 3, 4)).astype(np.float32)
    expected = factor * x + np.tile(shift, 2).reshape(1, 6, 1, 1)
    np.testing.assert_allclose(run(layer(params), x=x).blobs["y"].data, expected, rtol=1e-5, atol=1e-5)
    check_gradients(net_text(layer(params), x=x.shape), {"x": x})


def test_several_bottoms():
    x, w = RANDOM.normal(size=(2, 2, 3, 3, 4)).astype(np.float32)
    net = run(layer("operation: SUBTRACT value: 0.5", "xw", "yz"), x=x, w=w)
    for top, values in (("y", x), ("z", w)):
        np.testing.assert_allclose(net.blobs[top].data, values - 0.5, rtol=1e-5, atol=1e-6)


def test_of_a_file(tmp_path):
    mean = RANDOM.normal(size=(1, 3, 4, 5)).astype(np.float32)
    blob = proto.raw.BlobProto()
    fill_blob(blob, mean)
    write_message(tmp_path / "mean.binaryproto", blob)
    x = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    text = layer(f'operation: SUBTRACT file: "{tmp_path / "mean.binaryproto"}"')
    np.testing.assert_allclose(run(text, x=x).blobs["y"].data, x - mean, rtol=1e-5, atol=1e-6)
    assert "that a mean of (3, 4, 5) fits, got (2, 3, 4, 6)" in error_of(text, x=(2, 3, 4, 6))


def test_errors():
    assert "expected either value or file, the mean" in error_of(layer("operation: ADD"), x=(1, 3, 2, 2))
    assert "that a mean of (2, 1, 1) fits, got (1, 3, 2, 2)" in error_of(
        layer("operation: ADD value: 1 value: 2"), x=(1, 3, 2, 2)
    )
    assert "expected a top for each bottom, got 2 and 1" in error_of(
        layer("operation: ADD value: 1", "x", "yz"), x=(1, 3, 2, 2)
    )
