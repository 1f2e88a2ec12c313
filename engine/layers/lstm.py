"""Long short-term memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.recurrent import Recurrent
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("LSTM")
class LSTM(Recurrent):
    """Top: h (T, N, H), H = num_output, with c = f c + i g, h = o tanh(c), where i, f and o are sigmoids, g is a tanh;
    params: weights of x (4H, I), bias (4H), with a static input its weights (4H, S), weights of h (4H, H). Their rows
    are those of i, f, o and g. States: h, c."""

    states = 2
    gates = 4

    def lower(self, builder: Builder) -> None:
        builder.op("LSTM", self, self.drives(builder), self.attributes(), params=self.params[-1:])
