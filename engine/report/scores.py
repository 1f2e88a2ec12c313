"""What the answers to single samples come to: confusion, accuracy by class, intersection over union, ROC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 4096  # of a confusion matrix, which has a number for each pair


class Confusion:
    """What samples of each class were taken for.

    right, samples, predicted: int64 (classes), how many of a class were taken for it, are of it, were taken for it
    whatever they are. matrix: int64 (classes, classes), how often class i, by rows, was taken for class j; None of more
    than MOST_CLASSES. unknown: how many samples were taken for nothing.
    """

    def __init__(self, classes: int):
        self.right, self.samples, self.predicted = np.zeros((3, classes), np.int64)
        self.matrix = np.zeros((classes, classes), np.int64) if classes <= MOST_CLASSES else None
        self.unknown = 0

    def add(self, labels: np.ndarray, predicted: np.ndarray, known: np.ndarray) -> None:
        """labels, predicted: whole numbers from 0 to classes - 1, of one length. known: bool, whether a sample was
        taken for something."""
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
    """Float64 (classes); NaN where nothing is to be divided.

    recall: of the samples of a class, how many were taken for it, which is its accuracy. precision: of what was taken
    for a class, how much is. iou: samples of both, by samples of either.
    """

    recall: np.ndarray
    precision: np.ndarray
    iou: np.ndarray

    @classmethod
    def of(cls, found: Confusion) -> ByClass:
        return cls(
            _ratio(found.right, found.samples),
            _ratio(found.right, found.predicted),
            _ratio(found.right, found.samples + found.predicted - found.right),
        )


def mean(values: np.ndarray) -> float:
    """Of those that are numbers; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


@dataclass
class Roc:
    """The rates of right and wrong alarms over the threshold, from the highest score down, float64. area: under the
    curve, of which every point counts; NaN where all samples, or none, have the label, or a score is NaN."""

    thresholds: np.ndarray
    false_rates: np.ndarray
    true_rates: np.ndarray
    area: float


def roc(scores: np.ndarray, positive: np.ndarray) -> Roc:
    """Of one label. scores: (samples). positive: bool (samples). Samples of equal scores make one point, so that the
    area gives half to each tie, as Mann and Whitney's statistic does (Fawcett 2006, An introduction to ROC analysis).
    Points in the middle of a straight line are left out."""
    if np.isnan(scores).any():  # which is neither above nor below another
        return Roc(np.full(1, np.inf), np.zeros(1), np.zeros(1), float("nan"))
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1) if len(scores) else np.zeros(0, int)
    right = np.append(0, np.cumsum(positive)[last])
    wrong = np.append(0, 1 + last - right[1:])
    thresholds = np.append(np.inf, scores[last])
    if not right[-1] or not wrong[-1]:
        return Roc(thresholds[:1], np.zeros(1), np.zeros(1), float("nan"))
    # In whole numbers: the order of samples of equal scores, and so the ranks they come from, cannot be seen.
    twice = int(np.sum(np.diff(wrong) * (right[1:] + right[:-1])))
    area = twice / (2 * int(right[-1]) * int(wrong[-1]))
    bends = np.diff(wrong[1:]) * np.diff(right[:-1]) != np.diff(right[1:]) * np.diff(wrong[:-1])
    keep = np.r_[True, bends, True]
    return Roc(thresholds[keep], wrong[keep] / wrong[-1], right[keep] / right[-1], area)
