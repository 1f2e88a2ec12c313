import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from engine.weights.protobuf import fill_blob
from tests.layers.harness import check_golden, check_gradients, error_of, golden, net_text, run

RANDOM = np.random.default_rng(16)


def layer(params="", matrix='bottom: "h"', tops=("y",)):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "InfogainLoss" bottom: "x" bottom: "l" {matrix} {tops} {params} }}'


def sample(shape, axis=1):
    x = RANDOM.normal(size=shape).astype(np.float32)
    label_shape = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    labels = RANDOM.integers(0, shape[axis], label_shape).astype(np.float32)
    labels.flat[0] = 2  # the label that some tests ignore occurs
    return x, labels, RANDOM.uniform(0, 1, (shape[axis], shape[axis])).astype(np.float32)


def reference(x, labels, matrix, axis=1, ignore=None, normalization="VALID"):
    outer = np.prod(x.shape[: axis % x.ndim])
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    logs = x - x.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    losses = -(matrix.astype(np.float64)[labels.astype(int)] * logs).sum(-1)
    valid = labels != ignore
    divisor = {"VALID": max(1, valid.sum()), "FULL": labels.size, "BATCH_SIZE": outer, "NONE": 1}[normalization]
    return (losses * valid).sum() / divisor


def write_matrix(path, matrix):
    blob = proto.raw.BlobProto()
    fill_blob(blob, matrix)
    path.write_bytes(blob.SerializeToString())
    return f'infogain_loss_param {{ source: "{path}" }}'


@golden("infogain_loss")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("normalization", ["VALID", "FULL", "BATCH_SIZE", "NONE"])
def test_forward_and_gradients(normalization):
    x, labels, h = sample((3, 5, 2, 2))
    text = layer(f"loss_weight: 2 loss_param {{ ignore_label: 2 normalization: {normalization} }}")
    loss = run(text, x=x, l=labels, h=h).blobs["y"].data
    np.testing.assert_allclose(loss, reference(x, labels, h, 1, 2, normalization), rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape, h=h.shape), {"x": x, "l": labels, "h": h})


@pytest.mark.parametrize("shape, axis", [((4, 3), 1), ((2, 3, 4), -1)])
def test_axis(shape, axis):
    x, labels, h = sample(shape, axis)
    text = layer(f"infogain_loss_param {{ axis: {axis} }}")
    expected = reference(x, labels, h, axis)
    np.testing.assert_allclose(run(text, x=x, l=labels, h=h).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape, h=h.shape), {"x": x, "l": labels, "h": h})


def test_the_identity_is_softmax_with_loss():
    x, labels, _ = sample((6, 5))
    softmax = 'layer { name: "s" type: "SoftmaxWithLoss" bottom: "x" bottom: "l" top: "s" }'
    net = run(layer() + softmax, x=x, l=labels, h=np.eye(5, dtype=np.float32))
    np.testing.assert_allclose(net.blobs["y"].data, net.blobs["s"].data, rtol=1e-6)


def test_matrix_from_a_file(tmp_path):
    x, labels, h = sample((6, 5))
    text = layer(write_matrix(tmp_path / "h.binaryproto", h[None, None]), matrix="")
    np.testing.assert_allclose(run(text, x=x, l=labels).blobs["y"].data, reference(x, labels, h), rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), {"x": x, "l": labels})


def test_second_top_holds_the_probabilities():
    x, labels, h = sample((4, 5))
    net = run(layer(tops=("y", "p")), x=x, l=labels, h=h)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(net.blobs["p"].data, expected, rtol=1e-5)
    text = net_text(layer(tops=("y", "p")), x=x.shape, l=labels.shape, h=h.shape)
    check_gradients(text, {"x": x, "l": labels, "h": h}, ignore={"p"})


def test_errors(tmp_path):
    shapes = {"x": (4, 3), "l": (4,)}
    assert "expected the infogain matrix as third bottom, or in infogain_loss_param.source; got none" in error_of(
        layer(matrix=""), **shapes
    )
    assert "expected a matrix of 3 x 3 classes as third bottom, got (3, 2)" in error_of(layer(), **shapes, h=(3, 2))
    assert "expected 4 labels, one for each position of (4, 3) outside axis 1, got labels of shape (4, 2)" in error_of(
        layer(), x=(4, 3), l=(4, 2), h=(3, 3)
    )
    missing = layer(f'infogain_loss_param {{ source: "{tmp_path}/none" }}', matrix="")
    message = error_of(missing, **shapes)
    assert "layer 'layer'" in message and f"{tmp_path}/none" in message and "cannot be read" in message
    wrong = layer(write_matrix(tmp_path / "h", np.ones((2, 2))), matrix="")
    assert f"expected a matrix of 3 x 3 classes in {tmp_path}/h, got (2, 2)" in error_of(wrong, **shapes)
    with pytest.raises(DataError, match=r"layer 'layer': label 3 at position 0 is outside \[0, 3\)"):
        run(layer(), x=np.zeros((1, 3), np.float32), l=np.array([3], np.float32), h=np.ones((3, 3), np.float32))
