"""Runs gated recurrent units over sequences (Cho et al. 2014, arXiv 1406.1078), in the form of Synopsys's fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Parameter
from engine.layers.recurrent import Recurrent
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("GRU")
class GRU(Recurrent):
    """Computes h = g + z (h' - g), where h' is the h of the step before (Synopsys's layer). z and r are sigmoids of W
    x + b + R h', each with its own rows of W and b and its own R. g is tanh(W_h x + b_h + R_h (r h')) or, with
    `linear_before_reset`, tanh(W_h x + b_h + r (R_h h' + b')).

    Bottoms: see Recurrent. Top: h (T, N, H), with H = num_output. State: h.

    params: weights of x (3H, I), bias (3H), with a static input its weights (3H, S), R_z, R_r, R_h (H, H each), and b'
    (H) with linear_before_reset. Rows of W are those of z, r and h.
    """

    states = 1
    gates = 3

    def make_params(self) -> list[Parameter]:
        units = self.param.num_output
        recurrent = [Parameter((units, units), self.param.weight_filler) for _ in range(3)]
        if self.param.linear_before_reset:
            recurrent.append(Parameter((units,), self.param.bias_filler))
        return [*super().make_params()[:-1], *recurrent]

    def lower(self, builder: Builder) -> None:
        linear = self.param.linear_before_reset
        attributes = {**self.attributes(), "linear_before_reset": linear}
        builder.op("GRU", self, self.drives(builder), attributes, params=self.params[-4 if linear else -3 :])
