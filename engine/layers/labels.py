"""Checks the labels that are compared with scores."""

from __future__ import annotations

import math

from engine.errors import shape_text
from engine.layers.base import Layer

_ORDER = "; expected the scores first, then the labels"


def axis_of_classes(layer: Layer, axis: int) -> int:
    """Returns the axis of the classes in the first bottom, the scores, as a number of 0 or more. axis: as the text
    gives it. Raises ConfigError if the scores have no such axis."""
    scores = layer.bottoms[0]
    if not -len(scores.shape) <= axis < len(scores.shape):
        raise layer.error(
            f"its first bottom '{scores.name}' ({shape_text(scores.shape)}) has no axis {axis}, of the classes{_ORDER}"
        )
    return axis % len(scores.shape)


def are_distributions(layer: Layer, axis: int) -> bool:
    """Tells whether the second bottom is as large as the first: then it has a weight for each class, as mix_param makes
    them, and not a label for each position."""
    scores, labels = layer.shapes[:2]
    return scores[axis] > 1 and math.prod(labels) == math.prod(scores)


def check_labels(layer: Layer, axis: int) -> None:
    """Raises ConfigError unless the second bottom has one label for each position of the first one outside `axis`, the
    axis of the classes."""
    scores, labels = layer.shapes[:2]
    expected = math.prod(scores) // scores[axis]
    if math.prod(labels) != expected:
        raise layer.error(
            f"expected {expected} labels, one for each position of {scores} outside axis {axis}, "
            f"got labels of shape {labels}{_ORDER if scores[axis] == 1 else ''}"
        )
