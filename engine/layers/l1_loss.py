"""Computes the sum of the absolute differences of two blobs over the number of samples, and FlowNet 2's forms of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Shape
from engine.layers.lpq_loss import FlowLoss
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("L1Loss")
class L1Loss(FlowLoss):
    """Computes sum |a - b| / N, as several forks do. Bottoms: a and b, of one count, with N samples along the first
    axis; top: the loss ().

    With l1_loss_param, or with one bottom a, for which b is 0, it is FlowNet 2's layer, whose bottoms are (N, C, ...),
    of one shape. There NaN counts as a difference of 0, and not as an entry. Of its fields:
    - `l2_per_location`: the loss is the sum over the positions of sqrt(s sum over the channels of (a - b)^2 + epsilon),
      where s is 1, or 1/C with `l2_prescale_by_channels`.
    - `normalize_by_num_entries`: the sum is divided by the number of entries over C, not by N.
    - `plateau`: a difference below it counts as 0; with `l2_per_location`, a sum over the channels below its square.
    """

    @property
    def _is_flownets(self) -> bool:
        return self.message.HasField("l1_loss_param") or len(self.bottoms) == 1

    def infer(self) -> list[Shape]:
        if self._is_flownets:
            return super().infer()
        first, second = self.shapes
        if not first or first[:1] != second[:1]:
            raise self.error(f"expected bottoms with the same first axis, got {first} and {second}")
        if math.prod(first) != math.prod(second):
            raise self.error(f"expected bottoms of the same count, got {first} and {second}")
        return [()]

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op("LpqLoss" if self._is_flownets else "L1Loss", self, inputs, self.attributes())

    def attributes(self) -> Attributes:
        if not self._is_flownets:
            return super().attributes()
        param = self.message.l1_loss_param
        squares = param.l2_per_location
        return {
            **super().attributes(),
            "begins": [0],
            "p": [2.0 if squares else 1.0],
            "q": [0.5 if squares else 1.0],
            "p_epsilon": 0.0,
            "q_epsilon": param.epsilon if squares else 0.0,
            "scale": 1 / self.shapes[0][1] if squares and param.l2_prescale_by_channels else 1.0,
            "by_entries": param.normalize_by_num_entries,
            "plateau": param.plateau,
            "by_value": not squares,
        }
