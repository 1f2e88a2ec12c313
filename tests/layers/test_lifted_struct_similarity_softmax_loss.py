import numpy as np
import pytest

from tests.layers.harness import check_gradients, error_of, net_text, run

RANDOM = np.random.default_rng(41)
CLASSES = {"many": [0, 1, 0, 2, 1, 0, 2, 3], "two": [5, 5, 7, 7], "a pair": [4, 1, 3, 1]}


def layer(params="", weight=1):
    return f"""layer {{ name: "layer" type: "LiftedStructSimilaritySoftmaxLoss" bottom: "x" bottom: "l" top: "y"
        loss_weight: {weight} {params} }}"""


def margin(number):
    return f"lifted_struct_sim_softmax_loss_param {{ margin: {number} }}"


def reference(x, labels, margin=1.0):
    """Computes the loss pair by pair, by the paper's formula."""
    x = x.reshape(len(x), -1).astype(np.float64)
    distances = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    terms = []
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            if labels[i] != labels[j]:
                continue
            around = [np.exp(margin - distances[a, k]) for a in (i, j) for k in range(len(x)) if labels[k] != labels[a]]
            terms.append(max(0, np.log(sum(around)) + distances[i, j]) ** 2 if around else 0)
    return sum(terms) / (2 * len(terms)) if terms else 0


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("shape, number", [((5,), 1), ((2, 3, 1), 0.5)])
def test_forward_and_gradients(classes, shape, number):
    labels = np.array(CLASSES[classes], np.float32)
    x = RANDOM.normal(size=(len(labels), *shape)).astype(np.float32)
    text = layer(margin(number), weight=3)
    bottoms = {"x": x, "l": labels}
    expected = reference(x, labels, number)
    assert expected > 0
    np.testing.assert_allclose(run(text, **bottoms).blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(text, x=x.shape, l=labels.shape), bottoms)


def test_pairs_that_are_near_enough():
    """Pairs with a term below 0 add nothing and have no gradient."""
    x = np.array([[0, 0], [0.1, 0], [9, 0], [9, 0.1], [0, 4], [0, 8]], np.float32)
    labels = np.array([0, 0, 1, 1, 2, 2], np.float32)
    net = run(layer(), x=x, l=labels)
    expected = reference(x, labels)
    np.testing.assert_allclose(net.blobs["y"].data, expected, rtol=1e-5)
    check_gradients(net_text(layer(), x=x.shape, l=labels.shape), {"x": x, "l": labels})
    far = x * np.float32([10, 10])
    far[4:] = [[0, 400], [0.1, 400]]
    net = run(layer(), x=far, l=labels)
    net.backward()
    assert net.blobs["y"].data == 0 and not net.blobs["x"].diff.any()


def test_far_apart():
    """exp(margin - D) is 0 in float32, but the logarithm of the sum is finite."""
    x = 1000 * RANDOM.normal(size=(6, 8)).astype(np.float32)
    labels = np.array([0, 1, 0, 1, 2, 2], np.float32)
    net = run(layer(), x=x, l=labels)
    np.testing.assert_allclose(net.blobs["y"].data, _far_reference(x, labels), rtol=1e-5)
    net.backward()
    assert np.isfinite(net.blobs["x"].diff).all() and net.blobs["x"].diff.any()


def _far_reference(x, labels):
    distances = np.sqrt(((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1))
    terms = []
    for i, j in [(0, 2), (1, 3), (4, 5)]:
        others = labels != labels[i]
        terms.append(max(0, np.logaddexp.reduce(1 - distances[[i, j]][:, others].ravel()) + distances[i, j]) ** 2)
    return sum(terms) / 6


@pytest.mark.parametrize("labels", [[0, 1, 2], [3, 3, 3]])
def test_nothing_to_compare(labels):
    """Either no two samples are of one class, or all are. There the forks' loss is NaN, or comes from memory outside of
    an array."""
    net = run(layer(), x=RANDOM.normal(size=(3, 4)), l=np.array(labels))
    net.backward()
    assert net.blobs["y"].data == 0 and not net.blobs["x"].diff.any()


def test_samples_that_are_the_same():
    """The distance 0 has no derivative. In the forks the gradient is NaN."""
    x = np.array([[1, 2], [1, 2], [1, 2], [3, 1]], np.float32)
    labels = np.array([0, 0, 1, 1], np.float32)
    net = run(layer(), x=x, l=labels)
    net.backward()
    np.testing.assert_allclose(net.blobs["y"].data, reference(x, labels), rtol=1e-5)
    assert np.isfinite(net.blobs["x"].diff).all() and net.blobs["x"].diff.any()


def test_nan_shows():
    x = RANDOM.normal(size=(4, 3)).astype(np.float32)
    x[1, 1] = np.nan
    assert np.isnan(run(layer(), x=x, l=np.array([0, 0, 1, 1])).blobs["y"].data)


def test_errors():
    assert "expected features (N, ...) and N labels, got (4, 3) and (4, 2)" in error_of(layer(), x=(4, 3), l=(4, 2))
    ignoring = layer("loss_param { ignore_label: 2 }")
    assert "ignore_label has no effect here; take it out of loss_param" in error_of(ignoring, x=(4, 3), l=(4,))
