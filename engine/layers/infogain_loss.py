"""Computes the cross-entropy of a softmax with a matrix that makes some mistakes cost more than others."""

from __future__ import annotations

import math

from engine.errors import WeightsError
from engine.layers.base import Attributes, Shape
from engine.layers.registry import register
from engine.layers.softmax_loss_base import SoftmaxLossBase
from engine.weights.protobuf import read_blob


@register("InfogainLoss")
class InfogainLoss(SoftmaxLossBase):
    """Computes the sum over all (outer, inner) of -sum_c H[l, c] log p_c, where l is the label and p the softmax of the
    scores (Caffe's layer). The sum is divided as loss_param says.

    Bottoms: scores (outer..., classes, inner...), one label for each (outer, inner), and the matrix H
    (classes, classes), unless infogain_loss_param.source names a file with it. Tops: the loss (), and, if asked for,
    the probabilities.
    """

    bottom_range = (2, 3)
    constant_bottoms = frozenset({1, 2})

    @property
    def asked_axis(self) -> int:
        return self.message.infogain_loss_param.axis

    def infer(self) -> list[Shape]:
        tops = super().infer()
        if len(self.shapes) == 3:
            self._check_matrix(self.shapes[2], "as third bottom")
        elif not self.message.infogain_loss_param.source:
            raise self.error("expected the infogain matrix as third bottom, or in infogain_loss_param.source; got none")
        return tops

    def _check_matrix(self, shape: Shape, where: str) -> None:
        """Raises ConfigError for a matrix of another size. where: which one it is, for the message."""
        classes = self.shapes[0][self.axis]
        if math.prod(shape) != classes**2:
            raise self.error(f"expected a matrix of {classes} x {classes} classes {where}, got {shape}")

    def _matrix_of_file(self) -> list[float]:
        """Returns the values of the matrix in `source`. Raises ConfigError if it cannot be read."""
        source = self.message.infogain_loss_param.source
        try:
            matrix = read_blob(source)
        except WeightsError as error:
            raise self.error(f"source: {error}") from None
        self._check_matrix(matrix.shape, f"in {source}")
        return matrix.ravel().tolist()

    def attributes(self) -> Attributes:
        attributes = super().attributes()
        if len(self.shapes) == 2:
            attributes["infogain"] = self._matrix_of_file()
        return attributes

    def flops(self) -> int:
        return 6 * math.prod(self.shapes[0])
