"""Runs recurrent tanh units over sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Parameter, Shape
from engine.layers.recurrent import Recurrent
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


@register("RNN")
class RNN(Recurrent):
    """Computes h = tanh(W_hh h + W_xh x + b_h) from step to step, and o = tanh(W_ho h + b_o) (Caffe's layer). With a
    static input, its product with its weights is added to the sum in h.

    Bottoms: see Recurrent; top: o (T, N, H), H = num_output; params: W_xh (H, I), b_h (H), with a static input its
    weights (H, S), W_hh (H, H), W_ho (H, H), b_o (H). The state is h.
    """

    states = 1
    gates = 1

    def make_params(self) -> list[Parameter]:
        units = self.param.num_output
        return [*super().make_params(), self.matrix(units), Parameter((units,), self.param.bias_filler)]

    def lower(self, builder: Builder) -> None:
        top, *exposed = self.tops
        inputs = self.drives(builder)
        rows = (top.shape[0] * top.shape[1], top.shape[2])
        hidden, *states = builder.op(
            "RNN",
            self,
            inputs,
            self.attributes(),
            params=self.params[-3:-2],
            tops=[],
            shapes=[rows, *(blob.shape for blob in exposed)],
            gradients=[top.needs_gradient, *(blob.needs_gradient for blob in exposed)],
        )
        for blob, tensor in zip(exposed, states, strict=True):
            builder.set(blob, tensor)
        narrow = inputs[0].dtype == "bf16"
        if narrow:
            hidden = self._cast(builder, hidden, rows, to_bf16=True)
        y = self.inner_product(builder, hidden, self.params[-2:], learns=top.needs_gradient)
        y = builder.op("TanH", self, [y], params=[], tops=[], shapes=[rows])[0]
        if narrow:
            y = self._cast(builder, y, rows, to_bf16=False)
        builder.view(self, y, top.shape, top)

    def _cast(self, builder: Builder, tensor: Tensor, shape: Shape, *, to_bf16: bool) -> Tensor:
        return builder.op("Cast", self, [tensor], {"bf16": to_bf16}, params=[], tops=[], shapes=[shape])[0]
