"""Boxes of objects in images, and how they change when the image is cropped, expanded or mirrored.

Boxes are rows (n, 7) float32: class, instance, x1, y1, x2, y2 in fractions of the picture's sides, difficult.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine import proto

if TYPE_CHECKING:
    from engine.proto import AnnotatedDatum, EmitConstraint

COLUMNS = 7
CORNERS = slice(2, 6)
DIFFICULT = 6
Patch = tuple[float, float, float, float]  # x1, y1, x2, y2 in fractions of a picture's sides; may reach out of it

WHOLE: Patch = (0.0, 0.0, 1.0, 1.0)


def boxes_of(annotated: AnnotatedDatum) -> np.ndarray:
    """Returns the boxes of an AnnotatedDatum, in its order."""
    rows = [
        (group.group_label, each.instance_id, b.xmin, b.ymin, b.xmax, b.ymax, b.difficult)
        for group in annotated.annotation_group
        for each in group.annotation
        for b in (each.bbox,)
    ]
    return np.array(rows, np.float32).reshape(-1, COLUMNS)


def overlaps(patch: Patch, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the intersection of a patch with each box as three arrays (n,): over their union, over the patch's area,
    and over the box's area."""
    corners = boxes[:, CORNERS].astype(np.float64)
    sides = np.minimum(corners[:, 2:], patch[2:]) - np.maximum(corners[:, :2], patch[:2])
    common = np.prod(np.maximum(sides, 0), axis=1)
    areas = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 0), axis=1)
    own = (patch[2] - patch[0]) * (patch[3] - patch[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        fractions = [np.where(common > 0, common / whole, 0.0) for whole in (own + areas - common, own, areas)]
    return fractions[0], fractions[1], fractions[2]


def make_emit(param: EmitConstraint | None) -> Callable[[Patch, np.ndarray], np.ndarray]:
    """Returns the function of emit_constraint: it takes a patch and the boxes that touch it, and returns, as bools
    (n,), which of them the patch keeps. Without an emit_constraint it keeps all."""
    if param is None:
        return lambda patch, boxes: np.ones(len(boxes), bool)
    if param.emit_type == proto.EmitConstraint.MIN_OVERLAP:
        return lambda patch, boxes: overlaps(patch, boxes)[2] > param.emit_overlap

    def centre_inside(patch: Patch, boxes: np.ndarray) -> np.ndarray:
        corners = boxes[:, CORNERS]
        centres = (corners[:, :2] + corners[:, 2:]) / 2
        return np.asarray(((centres >= patch[:2]) & (centres <= patch[2:])).all(axis=1))

    return centre_inside


def seen_from(patch: Patch, boxes: np.ndarray) -> np.ndarray:
    """Returns the boxes in fractions of the patch, cut at its edges, without those that lie outside of it."""
    boxes = boxes.copy()
    begin, sides = np.array(patch[:2]), np.subtract(patch[2:], patch[:2])
    corners = (boxes[:, CORNERS] - np.tile(begin, 2)) / np.tile(sides, 2)
    boxes[:, CORNERS] = np.clip(corners, 0, 1)
    left = (boxes[:, 4:6] > boxes[:, 2:4]).all(axis=1)
    return boxes[left]


def mirrored(boxes: np.ndarray) -> np.ndarray:
    """Returns the boxes with left and right exchanged."""
    boxes = boxes.copy()
    boxes[:, [2, 4]] = 1 - boxes[:, [4, 2]]
    return boxes
