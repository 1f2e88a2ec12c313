"""Softmax, and the log-likelihood of all classes weighted by a matrix: some mistakes cost more than others."""

from __future__ import annotations

import math
from typing import Any

from engine.errors import WeightsError
from engine.layers.base import Shape
from engine.layers.loss import VALID, LossLayer
from engine.layers.registry import register
from engine.weights import read_blob


@register("InfogainLoss")
class InfogainLoss(LossLayer):
    """Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner), and the matrix H (classes x
    classes), unless infogain_loss_param.source names a file with it. Tops: loss (), probabilities.

    Of one position with label l: -sum_c H[l, c] log p_c.
    """

    bottom_range = (2, 3)
    top_range = (0, 2)
    constant_bottoms = frozenset({1, 2})

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.infogain_loss_param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        scores, labels = self.shapes[:2]
        if not scores or scores[:1] != labels[:1]:
            raise self.error(f"expected bottoms with the same first axis, got {scores} and {labels}")
        classes = scores[self.axis]
        expected = math.prod(scores) // classes
        if math.prod(labels) != expected:
            raise self.error(
                f"expected {expected} labels, one for each position of {scores} outside axis {self.axis}, "
                f"got labels of shape {labels}"
            )
        if len(self.shapes) == 3:
            self._check_matrix(self.shapes[2], "as third bottom")
        elif not self.message.infogain_loss_param.source:
            raise self.error("expected the infogain matrix as third bottom, or in infogain_loss_param.source; got none")
        return [(), scores][: max(1, len(self.message.top))]

    def _check_matrix(self, shape: Shape, where: str) -> None:
        classes = self.shapes[0][self.axis]
        if math.prod(shape) != classes**2:
            raise self.error(f"expected a matrix of {classes} x {classes} classes {where}, got {shape}")

    def _matrix_of_file(self) -> list[float]:
        source = self.message.infogain_loss_param.source
        try:
            matrix = read_blob(source)
        except WeightsError as error:
            raise self.error(f"source: {error}") from None
        self._check_matrix(matrix.shape, f"in {source}")
        return matrix.ravel().tolist()

    def attributes(self) -> dict[str, Any]:
        scores = self.shapes[0]
        outer, inner = math.prod(scores[: self.axis]), math.prod(scores[self.axis + 1 :])
        attributes = {
            **super().attributes(),
            **self.normalization_attributes(VALID, outer, inner),
            "axis": self.axis,
        }
        if len(self.shapes) == 2:
            attributes["infogain"] = self._matrix_of_file()
        return attributes

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
