"""Computes the mean average precision of a detector from the tops of DetectionEvaluate and EvalDetection layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _eleven_points(precision: np.ndarray, recall: np.ndarray) -> float:
    """Returns PASCAL VOC 2007's: the mean, over the recalls 0, 0.1, ... 1, of the best precision at that recall or
    above."""
    return float(np.mean([precision[recall >= least].max(initial=0) for least in np.arange(11) / 10]))


def _integral_of_best(precision: np.ndarray, recall: np.ndarray) -> float:
    """Returns PASCAL VOC 2010's: the integral over recall of the best precision at that recall or above."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return _integral(best, recall)


def _integral(precision: np.ndarray, recall: np.ndarray) -> float:
    """Returns the integral of precision over recall."""
    return float(np.sum(precision * np.diff(recall, prepend=0)))


def _coco(precision: np.ndarray, recall: np.ndarray) -> float:
    """Returns COCO's: the mean, over the recalls 0, 0.01, ... 1, of the best precision at that recall or above."""
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    # linspace, as in pycocotools: some of its numbers are not those nearest to a hundredth.
    return float(np.mean(best[np.searchsorted(recall, np.linspace(0, 1, 101))]))


AP_VERSIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "11point": _eleven_points,
    "MaxIntegral": _integral_of_best,
    "Integral": _integral,
    "101point": _coco,
}


class Detections:
    """Collects all boxes (of the ground truth) and detections of a test."""

    def __init__(self) -> None:
        self._boxes: dict[int, float] = {}
        self._found: list[np.ndarray] = []

    def add_rows(self, rows: np.ndarray) -> None:
        """Adds a batch's top of DetectionEvaluate, of shape (..., 5): a row (-1, label, boxes of it, ., .) for every
        label and a row (image, label, score, right, wrong) for every detection."""
        rows = np.asarray(rows, np.float64).reshape(-1, 5)
        for _, label, count, *_ in rows[(rows[:, 0] < 0) & (rows[:, 1] >= 0)]:
            self._add_boxes(int(label), count)
        self._found.append(rows[rows[:, 0] >= 0, 1:])

    def add_samples(self, rows: np.ndarray, classes: int) -> None:
        """Adds a batch's top of EvalDetection. Each row has the number of boxes of every class, then label, score,
        right and wrong of every detection."""
        for row in np.asarray(rows, np.float64):
            for label, count in enumerate(row[:classes]):
                self._add_boxes(label, count)
            self._found.append(row[classes:].reshape(-1, 4))

    def _add_boxes(self, label: int, count: float) -> None:
        self._boxes[label] = self._boxes.get(label, 0) + count

    def curves(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Returns, for each label that has boxes, the precision and the recall after each detection, from the highest
        score down."""
        found = np.concatenate([*self._found, np.zeros((0, 4))])
        found = found[found[:, 2] + found[:, 3] > 0]  # others match boxes that do not count, such as difficult ones
        found = found[np.argsort(-found[:, 1], kind="stable")]
        result = {}
        for label, boxes in sorted(self._boxes.items()):
            if boxes > 0:
                right, wrong = np.cumsum(found[found[:, 0] == label, 2:], axis=0).T
                result[label] = right / (right + wrong), right / boxes
        return result

    @property
    def boxes(self) -> dict[int, float]:
        """The number of boxes of each label."""
        return dict(sorted(self._boxes.items()))

    def average_precisions(self, version: str) -> dict[int, float]:
        """Returns the average precision of each label that has boxes. version: a key of AP_VERSIONS."""
        return {label: AP_VERSIONS[version](*curve) for label, curve in self.curves().items()}

    def mean(self, version: str) -> float:
        """Returns the mean of average_precisions(), 0 if there are no boxes."""
        values = self.average_precisions(version).values()
        return sum(values) / len(values) if values else 0.0
