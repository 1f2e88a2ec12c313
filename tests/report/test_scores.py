"""Confusion, IoU and ROC, against scikit-learn and against counting by hand."""

import numpy as np
import pytest

from engine.report.scores import MOST_CLASSES, ByClass, Confusion, mean, roc


@pytest.fixture(scope="module")
def metrics():
    """Returns scikit-learn's metrics. Importing them takes seconds, so it is done only when a test runs."""
    return pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.mark.parametrize("ties", [0, 7, 2])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_roc_is_scikit_learns(metrics, ties, share):
    random = np.random.default_rng(int(100 * share) + ties)
    there = random.random(3000) < share
    scores = (there + random.normal(0, 1, 3000)).astype(np.float32)
    if ties:
        scores = np.round(scores * ties / 4)  # few different scores, many samples of each
    found = roc(scores, there)
    assert abs(found.area - metrics.roc_auc_score(there, scores)) < 1e-12
    points = np.stack(metrics.roc_curve(there, scores, drop_intermediate=False), 1)
    assert set(found.thresholds) <= set(points[:, 2]) and len(found.thresholds) <= len(points)
    ours = np.stack([found.false_rates, found.true_rates, found.thresholds], 1)
    np.testing.assert_allclose(ours, points[np.isin(points[:, 2], found.thresholds)], atol=1e-12)
    # No threshold is missing.
    assert metrics.auc(found.false_rates, found.true_rates) == pytest.approx(found.area, abs=1e-12)


def test_the_order_of_samples_does_not_matter():
    random = np.random.default_rng(5)
    there, scores = random.random(500) < 0.3, np.round(random.normal(0, 3, 500))
    order = random.permutation(500)
    assert roc(scores, there).area == roc(scores[order], there[order]).area


@pytest.mark.parametrize(
    "scores, there, area",
    [
        ([1, 1, 1, 1], [1, 0, 1, 0], 0.5),
        ([3, 2, 1, 0], [1, 1, 0, 0], 1),
        ([3, 2, 1], [0, 0, 1], 0),
        ([2, 1, 1], [1, 1, 0], 0.75),
    ],
)
def test_roc_by_hand(scores, there, area):
    assert roc(np.array(scores, np.float32), np.array(there, bool)).area == area


@pytest.mark.parametrize("there", [[], [True, True], [False]])
def test_one_kind_of_samples_has_no_area(there):
    found = roc(np.arange(len(there), dtype=np.float32), np.array(there, bool))
    assert np.isnan(found.area) and len(found.thresholds) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_score_that_is_nan_leaves_no_area(order):
    """NaN is neither above nor below other scores, so the area would depend on the order of samples."""
    scores, there = np.array([0.9, np.nan, 0.1, 0.5]), np.array([True, False, False, True])
    found = roc(scores[::order], there[::order])
    assert np.isnan(found.area) and len(found.thresholds) == 1


def taken(labels, predicted, classes, known=None):
    """Returns the Confusion of labels and predictions. known: which of them count."""
    found = Confusion(classes)
    found.add(labels, predicted, np.ones(len(labels), bool) if known is None else known)
    return found


@pytest.mark.parametrize("classes", [6, MOST_CLASSES + 1])
def test_classes_are_scikit_learns(metrics, classes):
    random = np.random.default_rng(1)
    labels, predicted = random.integers(0, 6, 400), random.integers(0, 6, 400)
    predicted[labels == 2] = 2
    found = taken(labels[:150], predicted[:150], classes)
    found += taken(labels[150:], predicted[150:], classes)
    if classes == 6:
        np.testing.assert_array_equal(found.matrix, metrics.confusion_matrix(labels, predicted))
    else:
        assert found.matrix is None
    by_class = ByClass.of(found)
    np.testing.assert_allclose(by_class.recall[:6], metrics.recall_score(labels, predicted, average=None))
    np.testing.assert_allclose(by_class.precision[:6], metrics.precision_score(labels, predicted, average=None))
    np.testing.assert_allclose(by_class.iou[:6], metrics.jaccard_score(labels, predicted, average=None))
    assert mean(by_class.iou) == pytest.approx(metrics.jaccard_score(labels, predicted, average="macro"))


def test_a_sample_that_is_taken_for_nothing_is_not_right():
    found = taken(np.array([0, 0, 1]), np.array([0, 0, 1]), 2, np.array([True, False, True]))
    assert found.unknown == 1 and found.matrix is not None and found.matrix.tolist() == [[1, 0], [0, 1]]
    by_class = ByClass.of(found)
    assert [each.tolist() for each in (by_class.recall, by_class.precision, by_class.iou)] == [
        [0.5, 1],
        [1, 1],
        [0.5, 1],
    ]


def test_a_class_that_nobody_has_does_not_count():
    found = ByClass.of(taken(np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1, 1]), 3))
    assert np.isnan(found.recall[2]) and np.isnan(found.iou[2]) and mean(found.recall) == (0.75 + 1) / 2
    assert np.isnan(mean(np.array([np.nan])))
