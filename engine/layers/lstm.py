"""Runs long short-term memory over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.recurrent import Recurrent
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("LSTM")
class LSTM(Recurrent):
    """Computes c = f c + i g and h = o tanh(c) from step to step (Caffe's layer). The gates i, f and o are sigmoids,
    and g is a tanh, of the sums of x, h and the static input times their weights, plus the bias.

    Bottoms: see Recurrent; top: h (T, N, H), H = num_output; params: weights of x (4H, I), bias (4H), with a static
    input its weights (4H, S), weights of h (4H, H). The rows of each are those of i, f, o and g. The states are h and
    c.
    """

    states = 2
    gates = 4

    def lower(self, builder: Builder) -> None:
        builder.op("LSTM", self, self.drives(builder), self.attributes(), params=self.params[-1:])
