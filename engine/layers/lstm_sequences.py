"""Long short-term memory as in junhyukoh's caffe-lstm, which nets for text use (CTPN)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Lstm")
class Lstm(Layer):
    """Bottoms: x (T, N, I, ...) or, with N = `batch_size` sequences, (T N, I); if given, clip (T, N) or (T N), which is
    0 where a sequence begins and else 1; without it all begin with the batch. Top: h (T, N, H) or (T N, H), H =
    `num_output`, by LSTM's formulas. With a `clipping_threshold` gradients of what drives the gates are cut off there;
    params: weights of x (4H, I), weights of h (4H, H), bias (4H); their rows are those of i, f, o and g."""

    bottom_range = (1, 2)
    constant_bottoms = frozenset({1})
    bf16 = True
    wide_bottoms = frozenset({1})
    wide_tops = True

    @property
    def param(self):
        return self.message.lstm_param

    @property
    def goes_on(self) -> bool:
        """The states, for the next batch, unless all sequences begin with it."""
        return len(self.message.bottom) == 2

    @property
    def steps_and_batch(self) -> tuple[int, int]:
        """T and N."""
        first, *others = self.shapes[0]
        if len(others) > 1:
            return first, others[0]
        return first // self.param.batch_size, self.param.batch_size

    @property
    def inputs(self) -> int:
        """I."""
        return math.prod(self.shapes[0][2 if len(self.shapes[0]) > 2 else 1 :])

    @property
    def takes_rows(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        x, units = self.shapes[0], self.param.num_output
        self.check_above_zero(self.param, "num_output")
        self.check_above_zero(self.param, "batch_size")
        if len(x) < 2:
            raise self.error(f"expected a bottom (T, N, I, ...), or (T N, I), got {x}")
        if len(x) == 2 and x[0] % self.param.batch_size:
            raise self.error(f"expected a bottom (T N, I) of batch_size {self.param.batch_size} sequences, got {x}")
        if self.param.clipping_threshold < 0:
            raise self.error(f"expected clipping_threshold of at least 0, got {self.param.clipping_threshold:g}")
        steps, batch = self.steps_and_batch
        if len(self.bottoms) == 2 and math.prod(self.shapes[1]) != steps * batch:
            raise self.error(f"expected a second bottom of {steps} x {batch} values, got {self.shapes[1]}")
        return [(*x[: 2 if len(x) > 2 else 1], units)]

    def make_params(self) -> list[Parameter]:
        units = self.param.num_output
        shape = (4 * units, self.inputs)
        of_x = Parameter(shape, self.param.weight_filler, dims=shape)
        of_h = Parameter((4 * units, units), self.param.weight_filler)
        return [of_x, of_h, Parameter((4 * units,), self.param.bias_filler)]

    def lower(self, builder: Builder) -> None:
        steps, batch = self.steps_and_batch
        of_x, of_h, bias = self.params
        x = builder.view(self, builder.tensor(self.bottoms[0]), (steps * batch, self.inputs))
        bare, shape = {"bias": True, "transpose": False}, (steps * batch, 4 * self.param.num_output)
        drive = builder.op("InnerProduct", self, [x], bare, params=[of_x, bias], tops=[], shapes=[shape])[0]
        if len(self.bottoms) == 2:
            cont = builder.view(self, builder.tensor(self.bottoms[1]), (steps, batch))
        else:
            values = {"values": [0.0] + [1.0] * (steps - 1)}  # one for each step's sequences
            shapes = [(steps, batch)]
            cont = builder.op("Constant", self, [], values, params=[], tops=[], shapes=shapes, gradients=[False])[0]
        attributes = {"static": False, "constant": self.constant, "clip": self.param.clipping_threshold}
        builder.op("LSTM", self, [drive, cont], attributes, params=[of_h])

    def flops(self) -> int:
        steps, batch = self.steps_and_batch
        return 2 * steps * batch * sum(parameter.count for parameter in self.params)
