import numpy as np
import pytest

from engine import proto
from engine.errors import DataError
from tests.layers.harness import check_golden, error_of, golden, make_net, net_text, run

RANDOM = np.random.default_rng(5)


def layer(params="", tops=("y",)):
    tops = " ".join(f'top: "{top}"' for top in tops)
    return f'layer {{ name: "layer" type: "Accuracy" bottom: "x" bottom: "l" {tops} accuracy_param {{ {params} }} }}'


def reference(x, labels, top_k=1, axis=1, ignore=None):
    """Returns the accuracy and that of each class."""
    x = np.moveaxis(x, axis, -1)
    own = np.take_along_axis(x, np.minimum(labels, x.shape[-1] - 1).astype(int)[..., None], -1)
    right = (x >= own).sum(-1) - 1 < top_k
    valid = labels != ignore
    classes = [right[valid & (labels == c)] for c in range(x.shape[-1])]
    return right[valid].mean(), [each.mean() if each.size else 0 for each in classes]


@golden("accuracy", "accuracy_ignore", "accuracy_per_class", "accuracy_ties", "accuracy_top3")
def test_golden(case):
    check_golden(case)


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("shape, axis", [((12, 5), 1), ((3, 5, 2, 4), 1), ((3, 4, 5), -1)])
def test_forward(shape, axis, top_k):
    x = RANDOM.integers(0, 4, shape).astype(np.float32)  # with ties
    labels = RANDOM.integers(0, 5, [n for i, n in enumerate(shape) if i != axis % len(shape)]).astype(np.float32)
    labels.flat[::4] = 255
    net = run(layer(f"axis: {axis} top_k: {top_k} ignore_label: 255", ("y", "c")), proto.TEST, x=x, l=labels)
    accuracy, classes = reference(x, labels, top_k, axis, 255)
    np.testing.assert_allclose(net.blobs["y"].data, accuracy, rtol=1e-6)
    np.testing.assert_allclose(net.blobs["c"].data, classes, rtol=1e-6)


def test_ties_count_against_the_label():
    x = np.zeros((2, 3), np.float32)
    assert run(layer("top_k: 2"), proto.TEST, x=x, l=np.zeros(2, np.float32)).blobs["y"].data == 0
    assert run(layer("top_k: 3"), proto.TEST, x=x, l=np.zeros(2, np.float32)).blobs["y"].data == 1


def test_a_diverged_net_is_never_right():
    x = np.full((4, 3), np.nan, np.float32)
    assert run(layer(), proto.TEST, x=x, l=np.zeros(4, np.float32)).blobs["y"].data == 0


def test_more_labels_of_a_class_than_float32_counts():
    size = 4200
    assert size**2 > 2**24
    x = np.zeros((1, 2, size, size), np.float32)
    x[:, 0] = 1
    net = run(layer(tops=("y", "c")), proto.TEST, x=x, l=np.zeros((1, size, size), np.float32))
    assert net.blobs["y"].data == 1 and net.blobs["c"].data.tolist() == [1, 0]


def test_all_labels_ignored():
    x, labels = np.zeros((2, 3), np.float32), np.full(2, 9, np.float32)
    assert run(layer("ignore_label: 9"), proto.TEST, x=x, l=labels).blobs["y"].data == 0


def test_beside_a_loss_it_takes_no_part_in_backward():
    text = """
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "s" inner_product_param { num_output: 3 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "l" top: "loss" }
    layer { name: "accuracy" type: "Accuracy" bottom: "s" bottom: "l" top: "accuracy" }
    """
    x = RANDOM.normal(size=(4, 2)).astype(np.float32)
    net = run(text, x=x, l=np.array([0, 1, 2, 0], np.float32))
    net.backward()
    expected = (1 / 3 - np.eye(3)[[0, 1, 2, 0]]).T @ x / 4  # the weights are zero, so all classes are alike
    np.testing.assert_allclose(net.params["ip"][0].diff.get(), expected, atol=1e-6)


def test_a_label_that_is_no_class():
    net = make_net(net_text(layer(), x=(2, 3), l=(2,)), proto.TEST)
    net.blobs["l"].set(np.array([0, 3], np.float32))
    with pytest.raises(DataError, match=r"layer 'layer': label 3 at position 1 is outside \[0, 3\)"):
        net.forward()


def test_errors():
    assert "expected top_k from 1 to 3, the number of classes, got 4" in error_of(layer("top_k: 4"), x=(2, 3), l=(2,))
    assert "expected 2 labels, one for each position of (2, 3) outside axis 1, got labels of shape (2, 2)" in error_of(
        layer(), x=(2, 3), l=(2, 2)
    )


@pytest.mark.parametrize("shape, axis", [((12, 5), 1), ((3, 5, 2, 4), 1), ((3, 4, 5), -1)])
def test_the_largest_weight_of_a_distribution_is_the_label(shape, axis):
    x, weights = RANDOM.normal(size=shape).astype(np.float32), RANDOM.uniform(size=shape).astype(np.float32)
    labels = weights.argmax(axis).astype(np.float32)
    found = [
        run(layer(f"axis: {axis} top_k: 2", ("y", "c")), proto.TEST, x=x, l=each).blobs for each in (labels, weights)
    ]
    assert found[0]["y"].data == found[1]["y"].data and 0 < found[0]["y"].data < 1
    np.testing.assert_array_equal(found[0]["c"].data, found[1]["c"].data)
