"""Computes measures of a classifier from its answers to single samples: confusion, accuracy by class, intersection over
union, ROC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 4096  # of a confusion matrix, which has a number for each pair of classes


class Confusion:
    """Counts what samples of each class were taken for.

    Attributes:
        samples: int64 (classes), the samples of each class.
        predicted: int64 (classes), the samples that were taken for each class.
        right: int64 (classes), the samples of each class that were taken for it.
        matrix: int64 (classes, classes), how often a sample of class i (row) was taken for class j; None for more than
            MOST_CLASSES classes.
        unknown: how many samples were taken for no class, as their scores are NaN.
    """

    def __init__(self, classes: int):
        self.right, self.samples, self.predicted = np.zeros((3, classes), np.int64)
        self.matrix = np.zeros((classes, classes), np.int64) if classes <= MOST_CLASSES else None
        self.unknown = 0

    def add(self, labels: np.ndarray, predicted: np.ndarray, known: np.ndarray) -> None:
        """Adds samples.

        Args:
            labels, predicted: integers from 0 to classes - 1, (samples).
            known: bool (samples), False where a sample was taken for no class.
        """
        classes = len(self.samples)
        self.samples += np.bincount(labels, minlength=classes)
        self.unknown += int(len(known) - known.sum())
        labels, predicted = labels[known], predicted[known]
        self.predicted += np.bincount(predicted, minlength=classes)
        self.right += np.bincount(labels[labels == predicted], minlength=classes)
        if self.matrix is not None:
            np.add.at(self.matrix.ravel(), labels * classes + predicted, 1)

    def __iadd__(self, other: Confusion) -> Confusion:
        self.right += other.right
        self.samples += other.samples
        self.predicted += other.predicted
        self.unknown += other.unknown
        if self.matrix is not None and other.matrix is not None:
            self.matrix += other.matrix
        return self


@dataclass
class ByClass:
    """Measures of each class, float64 (classes); NaN where there is nothing to divide by."""

    recall: np.ndarray  # the fraction of a class's samples that were taken for it, which is its accuracy
    precision: np.ndarray  # the fraction of those taken for a class that are of it
    iou: np.ndarray  # intersection over union of the samples of a class and those taken for it

    @classmethod
    def of(cls, found: Confusion) -> ByClass:
        return cls(
            _ratio(found.right, found.samples),
            _ratio(found.right, found.predicted),
            _ratio(found.right, found.samples + found.predicted - found.right),
        )


def mean(values: np.ndarray) -> float:
    """Returns the mean of the values that are not NaN; NaN if all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


@dataclass
class Roc:
    """A receiver operating characteristic, float64 (points), from the highest threshold down."""

    thresholds: np.ndarray
    false_rates: np.ndarray  # the fraction of samples without the label whose scores reach the threshold
    true_rates: np.ndarray  # the fraction of samples with the label whose scores do
    area: float  # under the curve; NaN if all samples have the label, or none has, or a score is NaN


def roc(scores: np.ndarray, positive: np.ndarray) -> Roc:
    """Returns the ROC of one label.

    Samples of equal scores make one point, so that the area counts a tie as a half, as Mann and Whitney's statistic
    does (Fawcett 2006, An introduction to ROC analysis). Points in the middle of a straight line are left out.

    Args:
        scores: (samples).
        positive: bool (samples), whether each has the label.
    """
    if np.isnan(scores).any():  # NaN is neither above nor below another score
        return Roc(np.full(1, np.inf), np.zeros(1), np.zeros(1), float("nan"))
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1) if len(scores) else np.zeros(0, int)
    right = np.append(0, np.cumsum(positive)[last])
    wrong = np.append(0, 1 + last - right[1:])
    thresholds = np.append(np.inf, scores[last])
    if not right[-1] or not wrong[-1]:
        return Roc(thresholds[:1], np.zeros(1), np.zeros(1), float("nan"))
    # Sum whole numbers: the result then does not depend on the order of samples, and so not on the number of ranks.
    twice = int(np.sum(np.diff(wrong) * (right[1:] + right[:-1])))
    area = twice / (2 * int(right[-1]) * int(wrong[-1]))
    bends = np.diff(wrong[1:]) * np.diff(right[:-1]) != np.diff(right[1:]) * np.diff(wrong[:-1])
    keep = np.r_[True, bends, True]
    return Roc(thresholds[keep], wrong[keep] / wrong[-1], right[keep] / right[-1], area)
