"""Sharpens the scores of pixels by a conditional random field within the net (CRF-RNN, arXiv 1502.03240)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder

# The diagonals of weights that the text does not give, as in the files beside the fork's own net.
SPATIAL, BILATERAL = 3.0, 5.0
_DEVIATIONS = ("theta_alpha", "theta_beta", "theta_gamma")
_MOST_ITERATIONS = 1000
_MOST_PIXELS = (2**31 - 1) // 6  # int32 counts six corners of the bilateral filter's lattice for each


@register("MultiStageMeanfield")
class MultiStageMeanfield(Layer):
    """Computes `num_iterations` of mean field inference (CRF-RNN's layer). In each, with p the softmax of the scores,
    these become unary - compatibilities (spatial weights S(p) + bilateral weights B(p)), where S and B are the spatial
    and the bilateral filter.

    Bottoms: unary scores (N, C, H, W), the scores to begin with, of the same shape and as a rule a copy, and pictures
    (N, 3, H, W), into which no gradient flows; top: the scores (N, C, H, W), before the softmax; params: weights of the
    spatial filter (1, 1, C, C), and, of the same shape, of the bilateral filter (both diagonal at first) and
    compatibilities (-1 on the diagonal: a class supports itself).

    `theta_gamma` is the deviation of the spatial filter in pixels; `theta_alpha` and `theta_beta` are those of the
    bilateral filter, in pixels and in values of the picture.
    """

    bottom_range = (3, 3)
    constant_bottoms = frozenset({2})

    @property
    def param(self):
        return self.message.multi_stage_meanfield_param

    def infer(self) -> list[Shape]:
        unary, first, picture = self.shapes
        if len(unary) != 4 or first != unary or picture != (unary[0], 3, *unary[2:]):
            raise self.error(
                f"expected scores (N, C, H, W), twice, and pictures (N, 3, H, W), got {unary}, {first} and {picture}"
            )
        if unary[2] * unary[3] > _MOST_PIXELS:
            raise self.error(f"expected at most {_MOST_PIXELS} pixels, got {unary[2]} x {unary[3]}")
        if not 1 <= self.param.num_iterations <= _MOST_ITERATIONS:
            raise self.error(f"expected num_iterations from 1 to {_MOST_ITERATIONS}, got {self.param.num_iterations}")
        for name in _DEVIATIONS:
            if not getattr(self.param, name) > 0:
                raise self.error(f"expected {name} above 0, got {getattr(self.param, name):g}")
        self._weights("spatial", SPATIAL)
        self._weights("bilateral", BILATERAL)
        return [unary]

    def _weights(self, filter: str, otherwise: float) -> np.ndarray:
        """Returns the diagonal (C) with which the weights of a filter begin. otherwise: each value, if the text gives
        none. Raises ConfigError if the text does not give C numbers."""
        text, classes = getattr(self.param, f"{filter}_filter_weights_str"), self.shapes[0][1]
        if not text:
            name = f"{filter}_filter_weight"
            return np.full(classes, getattr(self.param, name) if self.param.HasField(name) else otherwise)
        try:
            found = np.array(text.split(), np.float32)
        except ValueError:
            found = np.array([])
        if found.shape != (classes,) or not np.isfinite(found).all():
            raise self.error(
                f"expected {classes} numbers, one for each class, in {filter}_filter_weights_str, '{text}'"
            )
        return found

    def make_params(self) -> list[Parameter]:
        diagonals = (
            self._weights("spatial", SPATIAL),
            self._weights("bilateral", BILATERAL),
            -np.ones(self.shapes[0][1]),
        )
        values = [np.diag(diagonal).astype(np.float32)[None, None] for diagonal in diagonals]
        return [Parameter(each.shape, values=each) for each in values]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        attributes = {name: getattr(self.param, name) for name in _DEVIATIONS}
        builder.op("MeanField", self, inputs, {**attributes, "iterations": self.param.num_iterations})

    def flops(self) -> int:
        scores = math.prod(self.shapes[0])
        filtering = 2 * (5 + 11)  # of each score by both lattices, without the blurring of their vertices
        return self.param.num_iterations * scores * (filtering + 6 * self.shapes[0][1])
