"""The base of LSTM and RNN: sequences, states that go on from step to step, and an input that all steps see."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from engine.layers.base import Attributes, Layer, Parameter, Shape

if TYPE_CHECKING:
    from engine.layers.builder import Builder, Tensor


class Recurrent(Layer):
    """Bottoms: x (T, N, ...), cont (T, N), which is 0 where a sequence begins and else 1, and, if given, an input that
    all steps see (N, ...). Top (T, N, num_output).

    With `expose_hidden` the states before the first step are further bottoms, and those after the last step further
    tops, each (1, N, num_output). Without it a batch begins with the states with which the batch before has ended, but
    for sequences that begin by `cont`. Gradients do not go back beyond the batch.
    """

    constant_bottoms = frozenset({1})
    bf16 = True
    wide_bottoms = frozenset({1, 2, 3, 4})
    wide_tops = True
    states: ClassVar[int]  # how many kinds of state there are; the hidden state is the first
    gates: ClassVar[int]  # how many gates a unit has

    @property
    def param(self):
        return self.message.recurrent_param

    @property
    def exposed(self) -> int:
        """How many states are bottoms and tops."""
        return self.states if self.param.expose_hidden else 0

    @property
    def goes_on(self) -> bool:
        """Whether the next batch begins with this one's states: if they are not tops."""
        return not self.exposed

    @property
    def bottom_range(self) -> tuple[int, int]:
        return 2 + self.exposed, 3 + self.exposed

    @property
    def top_range(self) -> tuple[int, int]:
        return 1 + self.exposed, 1 + self.exposed

    @property
    def has_static(self) -> bool:
        return len(self.bottoms) == 3 + self.exposed

    @property
    def takes_rows(self) -> bool:
        return True

    def infer(self) -> list[Shape]:
        x, cont = self.shapes[:2]
        self.check_above_zero(self.param, "num_output")
        if len(x) < 2:
            raise self.error(f"expected a bottom of at least 2 axes (T, N, ...), got {x}")
        if cont != x[:2]:
            raise self.error(f"expected a second bottom (T, N) that says where sequences begin, {x[:2]}, got {cont}")
        if self.has_static and self.shapes[2][:1] != x[1:2]:
            raise self.error(f"expected a third bottom for all steps, ({x[1]}, ...), got {self.shapes[2]}")
        state = (1, x[1], self.param.num_output)
        for shape in self.shapes[2 + self.has_static :]:
            if shape != state:
                raise self.error(f"expected a first state of shape {state}, got {shape}")
        return [(*x[:2], self.param.num_output)] + [state] * self.exposed

    def make_params(self) -> list[Parameter]:
        """Returns the weights of x, their bias, the weights of the static input if there is one, and those of the
        hidden state."""
        units = self.gates * self.param.num_output
        params = [self.matrix(math.prod(self.shapes[0][2:]))]
        params.append(Parameter((units,), self.param.bias_filler))
        if self.has_static:
            params.append(self.matrix(math.prod(self.shapes[2][1:])))
        return [*params, Parameter((units, self.param.num_output), self.param.weight_filler)]

    def matrix(self, inputs: int) -> Parameter:
        """Returns a parameter for weights (outputs of all gates, inputs)."""
        shape = (self.gates * self.param.num_output, inputs)
        return Parameter(shape, self.param.weight_filler, dims=shape)

    def inner_product(self, builder: Builder, x: Tensor, params: list[Parameter], learns: bool = True) -> Tensor:
        """Adds an InnerProduct of x (rows, inputs). Returns its output, (rows, outputs). learns: whether what follows
        leads to a loss."""
        attributes = {"bias": len(params) == 2, "transpose": False}
        shape = (x.shape[0], params[0].shape[0])
        gradients = None if learns else [False]
        return builder.op(
            "InnerProduct", self, [x], attributes, params=params, tops=[], shapes=[shape], gradients=gradients
        )[0]

    def drives(self, builder: Builder) -> list[Tensor]:
        """Returns the inputs of the op: the product of x and its weights, for all steps at once; cont; the product of
        the static input, if there is one; the states."""
        x, cont, *others = (builder.tensor(blob) for blob in self.bottoms)
        steps, batch = self.shapes[0][:2]
        rows = builder.view(self, x, (steps * batch, self.params[0].shape[1]))
        inputs = [self.inner_product(builder, rows, self.params[:2]), builder.plain(self, cont)]
        if self.has_static:
            rows = builder.view(self, others.pop(0), (batch, self.params[2].shape[1]))
            inputs.append(self.inner_product(builder, rows, self.params[2:3]))
        return inputs + [builder.plain(self, state) for state in others]

    def attributes(self) -> Attributes:
        return {"static": self.has_static, "constant": self.constant}

    def flops(self) -> int:
        steps, batch = self.shapes[0][:2]
        weights = sum(parameter.count for parameter in self.params)
        if not self.has_static:
            return 2 * steps * batch * weights
        return 2 * batch * (steps * (weights - self.params[2].count) + self.params[2].count)
