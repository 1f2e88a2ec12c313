"""Computes boxes of detection layers in NumPy, for the tests of those layers to compare with."""

from __future__ import annotations

import numpy as np


def random_boxes(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns boxes (*shape, 4): x1, y1, x2, y2 within the image or a little beyond."""
    center, size = generator.uniform(0.1, 0.9, (*shape, 2)), generator.uniform(0.1, 0.5, (*shape, 2))
    return np.concatenate([center - size / 2, center + size / 2], -1).astype(np.float32)


def priors(generator: np.random.Generator, count: int) -> np.ndarray:
    """Returns a blob of priors (1, 2, count * 4): boxes and variances."""
    variances = np.broadcast_to(np.float32([0.1, 0.1, 0.2, 0.3]), (count, 4))
    return np.stack([random_boxes(generator, count).ravel(), variances.ravel()])[None]


def truth_blob(rows: list[tuple], padding: int = 2) -> np.ndarray:
    """Returns a blob of true boxes (1, 1, M, 8) from rows (image, label, box, difficult), with empty rows at the
    end."""
    values = [[image, label, 0, *box, difficult] for image, label, box, difficult in rows] + [[-1] * 8] * padding
    return np.array(values, np.float32)[None, None]


def area(box):
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)


def overlap(a, b):
    shared = area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])
    return shared / (area(a) + area(b) - shared) if shared else 0.0


def center_size(box):
    return np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]])


def encode(code, prior, variance, box):
    if code == "CENTER_SIZE":
        ours, theirs = center_size(box), center_size(prior)
        offsets = np.concatenate([(ours[:2] - theirs[:2]) / theirs[2:], np.log(ours[2:] / theirs[2:])])
    else:
        offsets = box - prior
        if code == "CORNER_SIZE":
            offsets = offsets / np.tile(center_size(prior)[2:], 2)
    return offsets / variance


def decode(code, prior, variance, offsets):
    offsets = offsets * variance
    if code == "CENTER_SIZE":
        theirs = center_size(prior)
        center, half = offsets[:2] * theirs[2:] + theirs[:2], np.exp(offsets[2:]) * theirs[2:] / 2
        return np.concatenate([center - half, center + half])
    if code == "CORNER_SIZE":
        offsets = offsets * np.tile(center_size(prior)[2:], 2)
    return prior + offsets


class Anchors:
    """The predictions of a YOLO detector, (N, anchors * (5 + classes), side, side), by their meaning."""

    def __init__(self, predictions, classes, biases):
        self.side = predictions.shape[2]
        self.sizes = np.array(biases).reshape(-1, 2) / self.side
        shape = (len(predictions), len(self.sizes), 5 + classes, self.side, self.side)
        self.values = np.moveaxis(predictions.astype(np.float64).reshape(shape), 2, -1)  # (N, A, rows, columns, 5 + C)

    def box(self, n, anchor, row, column):
        x, y, w, h = self.values[n, anchor, row, column, :4]
        center = np.array([column + sigmoid(x), row + sigmoid(y)]) / self.side
        half = np.exp([w, h]) * self.sizes[anchor] / 2
        return np.concatenate([center - half, center + half])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum()
