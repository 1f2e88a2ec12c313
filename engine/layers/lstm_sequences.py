"""Runs long short-term memory over sequences as junhyukoh's caffe-lstm does, which nets for text use (CTPN)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Lstm")
class Lstm(Layer):
    """Computes what LSTM does (junhyukoh's layer). Bottoms: x (T, N, I, ...) or, with N = `batch_size`, (T N, I), and,
    if given, clip (T, N) or (T N), which is 0 at the first step of a sequence and 1 elsewhere; without it all sequences
    begin with the batch. Top: h (T, N, H) or (T N, H), H = `num_output`; params: weights of x (4H, I), weights of h
    (4H, H), bias (4H). The rows of each are those of i, f, o and g.

    With `clipping_threshold` the gradients of the sums of which the gates are made are limited to plus and minus that.
    """

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
        """Whether the next batch begins with this one's states: if clip says where sequences begin."""
        return len(self.message.bottom) == 2

    @property
    def steps_and_batch(self) -> tuple[int, int]:
        """T, the number of steps, and N, that of sequences."""
        first, *others = self.shapes[0]
        if len(others) > 1:
            return first, others[0]
        return first // self.param.batch_size, self.param.batch_size

    @property
    def inputs(self) -> int:
        """I, the number of inputs at each step."""
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
            values = {"values": [0.0] + [1.0] * (steps - 1)}  # one number for all sequences of a step
            shapes = [(steps, batch)]
            cont = builder.op("Constant", self, [], values, params=[], tops=[], shapes=shapes, gradients=[False])[0]
        attributes = {"static": False, "constant": self.constant, "clip": self.param.clipping_threshold}
        builder.op("LSTM", self, [drive, cont], attributes, params=[of_h])

    def flops(self) -> int:
        steps, batch = self.steps_and_batch
        return 2 * steps * batch * sum(parameter.count for parameter in self.params)
