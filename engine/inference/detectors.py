"""Knows the layers whose outputs are detections, from which a test computes an average precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.report.average_precision import Detections

if TYPE_CHECKING:
    from engine.graph.graph import Graph
    from engine.layers.base import Layer


class DetectorKind(NamedTuple):
    """A type of layer that marks detections as right or wrong."""

    add: Callable[[Detections, Layer, np.ndarray], None]  # adds a value of the layer's top to the Detections
    first: int  # the number that the layer's class 0 has in a label map, where 0 is the background


DETECTORS = {
    "DetectionEvaluate": DetectorKind(lambda found, layer, value: found.add_rows(value), 0),
    "EvalDetection": DetectorKind(
        lambda found, layer, value: found.add_samples(value, layer.message.eval_detection_param.num_class), 1
    ),
}


def detectors_of(graph: Graph) -> dict[str, Layer]:
    """Returns the detectors of a net, by the names of their tops."""
    return {
        layer.tops[0].name: layer
        for layer in graph.layers
        if layer.type in DETECTORS and layer.tops[0] in graph.outputs
    }
