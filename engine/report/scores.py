"""What the answers to single samples come to: confusion, accuracy by class, intersection over union, ROC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def confusion(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts, int64 (classes, classes): how often class i, by rows, was taken for class j. labels, predicted: whole
    numbers from 0 to classes - 1, of one length."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


@dataclass
class ByClass:
    """Of a confusion matrix, float64 (classes); NaN where nothing is to be divided.

    recall: of the samples of a class, how many were taken for it, which is its accuracy. precision: of what was taken
    for a class, how much is. iou: samples of both, by samples of either.
    """

    samples: np.ndarray
    recall: np.ndarray
    precision: np.ndarray
    iou: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> ByClass:
        right, samples, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
        return cls(
            samples,
            _ratio(right, samples),
            _ratio(right, predicted),
            _ratio(right, samples + predicted - right),
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
    curve, of which every point counts; NaN where all samples, or none, have the label."""

    thresholds: np.ndarray
    false_rates: np.ndarray
    true_rates: np.ndarray
    area: float


def roc(scores: np.ndarray, positive: np.ndarray) -> Roc:
    """Of one label. scores: (samples). positive: bool (samples). Samples of equal scores make one point, so that the
    area gives half to each tie, as Mann and Whitney's statistic does (Fawcett 2006, An introduction to ROC analysis).
    Points in the middle of a straight line are left out."""
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
