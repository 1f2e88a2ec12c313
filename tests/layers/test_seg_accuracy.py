import numpy as np
import pytest

import engine.caffe as caffe
from engine import proto
from engine.errors import DataError
from tests.layers.harness import error_of, make_net, net_text, run

RANDOM = np.random.default_rng(17)


def layer(params=""):
    return (
        'layer { name: "layer" type: "SegAccuracy" bottom: "x" bottom: "l" top: "y" '
        f"seg_accuracy_param {{ {params} }} }}"
    )


def sample(classes=5):
    x = RANDOM.normal(size=(2, classes, 6, 7)).astype(np.float32)
    labels = RANDOM.integers(0, classes - 1, (2, 1, 6, 7)).astype(np.float32)  # the last class never occurs
    labels[:, :, :2] = x.argmax(1)[:, None, :2]
    return x, labels


def reference(pairs, classes, ignore=()):
    """Returns the three measures of a list of (scores, labels)."""
    matrix = np.zeros((classes, classes))
    for x, labels in pairs:
        kept = ~np.isin(labels.ravel(), ignore)
        np.add.at(matrix, (labels.ravel()[kept].astype(int), x.argmax(1).ravel()[kept]), 1)
    right, true, found = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    seen = true > 0
    union = true + found - right
    overlap = np.where(union > 0, right / np.maximum(union, 1), 1)
    return [right.sum() / matrix.sum(), (right[seen] / true[seen]).mean(), overlap.mean()]


@pytest.mark.parametrize("ignore", [(), (255,), (255, 1)])
def test_three_measures(ignore):
    x, labels = sample()
    if ignore:
        labels[0, 0, 3:] = 255
    net = run(layer(" ".join(f"ignore_label: {label}" for label in ignore)), proto.TEST, x=x, l=labels)
    assert net.blobs["y"].data.shape == (1, 1, 1, 3)
    np.testing.assert_allclose(net.blobs["y"].data.ravel(), reference([(x, labels)], 5, ignore), rtol=1e-6)


@pytest.mark.parametrize("reset", ["true", "false"])
def test_batches_together_or_apart(reset):
    first, second = sample(), sample()
    net = make_net(net_text(layer(f"reset: {reset}"), x=first[0].shape, l=first[1].shape), proto.TEST)
    for x, labels in (first, second):
        net.blobs["x"].set(x)
        net.blobs["l"].set(labels)
        top = net.forward()["y"]
    pairs = [second] if reset == "true" else [first, second]
    np.testing.assert_allclose(top.ravel(), reference(pairs, 5), rtol=1e-6)


def test_of_equal_scores_the_last_wins():
    net = run(layer(), x=np.zeros((1, 3, 1, 1), np.float32), l=np.full((1, 1, 1, 1), 2, np.float32))
    assert net.blobs["y"].data.ravel().tolist() == [1, 1, 1]


def test_pixels_whose_scores_are_nan_are_wrong():
    x = np.array([[1, 0], [np.nan, 5]], np.float32).T.reshape(1, 2, 1, 2)
    net = run(layer(), x=x, l=np.array([0, 1], np.float32).reshape(1, 1, 1, 2))
    assert net.blobs["y"].data.ravel().tolist() == [0.5, 0.5, 0.5]


def test_nothing_but_ignored_pixels():
    net = run(layer("ignore_label: 0"), x=np.zeros((1, 2, 1, 1), np.float32), l=np.zeros((1, 1, 1, 1), np.float32))
    assert net.blobs["y"].data.ravel().tolist() == [0, 0, 1]


def test_errors():
    assert "expected a label for each pixel of (2, 3, 4, 5), got labels of shape (2, 1, 4, 4)" in error_of(
        layer(), x=(2, 3, 4, 5), l=(2, 1, 4, 4)
    )
    assert "expected top_k 1, got 2" in error_of(layer("top_k: 2"), x=(2, 3, 4, 5), l=(2, 1, 4, 5))
    with pytest.raises(DataError, match=r"layer 'layer': label 255 at position 0 is outside \[0, 2\)"):
        run(layer(), x=np.zeros((1, 2, 1, 1), np.float32), l=np.full((1, 1, 1, 1), 255, np.float32))


def test_pixels_stay_counted_in_other_shapes(tmp_path):
    """A script scores pictures of any size, one after the other, so counts must survive reshaping."""
    path = tmp_path / "net.prototxt"
    path.write_text(net_text(layer("reset: false"), x=(1, 2, 1, 2), l=(1, 1, 1, 2)))
    net = caffe.Net(str(path), caffe.TEST)
    for right, width in ((False, 2), (True, 3)):
        net.blobs["x"].reshape(1, 2, 1, width)
        net.blobs["l"].reshape(1, 1, 1, width)
        net.blobs["x"].data[...] = np.array([1, 0]).reshape(1, 2, 1, 1)
        net.blobs["l"].data[...] = 0 if right else 1
        net.forward()
    assert net.blobs["y"].data.ravel()[0] == np.float32(3 / 5)
