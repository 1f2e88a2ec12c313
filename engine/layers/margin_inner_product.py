"""Scores classes, of which a sample's own has to lead by an angle: A-Softmax of SphereFace (Liu et al. 2017, arXiv
1704.08063) and L-Softmax (Liu et al. 2016, arXiv 1612.02295)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine import proto
    from engine.layers.builder import Builder


class MarginLayer(Layer):
    """The base of layers that score classes with a margin. Bottoms: x (outer..., inner...), split at `axis`, and
    labels, one for each of outer; tops: scores (outer..., num_output) and, if given, lambda (1).

    The score of class j is x w_j, w_j being its row of the weights. But that of a sample's own class is
    (|x| |w| psi(t) + lambda x w) / (1 + lambda), where t is the angle between x and w, and
    psi(t) = (-1)^k cos(m t) - 2 k for t from k pi / m to (k + 1) pi / m, with m = 1 to 4 for `type` SINGLE to
    QUADRUPLE.

    At iteration i of the solver, counted from 1, lambda is max(lambda_min, base (1 + gamma (iteration + i))^-power). So
    a run that is resumed goes on with the same values.
    """

    bottom_range = (2, 2)
    top_range = (1, 2)
    first_top_learns = True
    constant_bottoms = frozenset({1})
    unit_weights = False

    @property
    def param(self) -> proto.MarginInnerProductParameter | proto.LargeMarginInnerProductParameter:
        raise NotImplementedError

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.param.axis, len(self.shapes[0]))

    def infer(self) -> list[Shape]:
        x, labels = self.shapes
        if self.param.num_output == 0:
            raise self.error("expected num_output above 0, got 0")
        if math.prod(labels) != math.prod(x[: self.axis]):
            raise self.error(f"expected {math.prod(x[: self.axis])} labels, one for each sample of {x}, got {labels}")
        if self.param.gamma < 0 or self.param.iteration < 0:
            raise self.error(
                f"expected gamma and iteration of at least 0, got {self.param.gamma:g} and {self.param.iteration}"
            )
        return [(*x[: self.axis], self.param.num_output), (1,)][: len(self.message.top)]

    def make_params(self) -> list[Parameter]:
        size = math.prod(self.shapes[0][self.axis :])
        return [Parameter((self.param.num_output, size), self.param.weight_filler)]

    def attributes(self) -> Attributes:
        param = self.param
        schedule = {name: getattr(param, name) for name in ("base", "gamma", "power", "lambda_min", "iteration")}
        return {**schedule, "margin": param.type + 1, "unit_weights": self.unit_weights}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        samples = math.prod(self.shapes[0][: self.axis])
        top, *others = self.tops
        shapes = [(samples, self.param.num_output), *(blob.shape for blob in others)]
        if top.shape == shapes[0]:
            builder.op("MarginInnerProduct", self, inputs, self.attributes())
            return
        gradients = [blob.needs_gradient for blob in self.tops]
        made = builder.op(
            "MarginInnerProduct", self, inputs, self.attributes(), tops=[], shapes=shapes, gradients=gradients
        )
        builder.view(self, made[0], top.shape, top)
        for blob, tensor in zip(others, made[1:], strict=True):
            builder.set(blob, tensor)

    def flops(self) -> int:
        return 2 * math.prod(self.shapes[0]) * self.param.num_output


@register("MarginInnerProduct")
class MarginInnerProduct(MarginLayer):
    """A-Softmax, as SphereFace trains it. Bottoms, tops: see MarginLayer; params: weights (num_output, inner), whose
    rows each forward scales to length 1.

    The gradient of the weights is that of x w, without margin and scaling. The gradient of a sample's own score by x is
    a w + b x, with a and b as the formula has them, divided by sqrt(a^2 + b^2).
    """

    unit_weights = True

    @property
    def rescales_weights(self) -> bool:
        return True

    @property
    def param(self) -> proto.MarginInnerProductParameter:
        return self.message.margin_inner_product_param


@register("LargeMarginInnerProduct")
class LargeMarginInnerProduct(MarginLayer):
    """L-Softmax, with the gradients of its formula (happynear's layer). Bottoms, tops: see MarginLayer; params: weights
    (num_output, inner)."""

    @property
    def param(self) -> proto.LargeMarginInnerProductParameter:
        return self.message.largemargin_inner_product_param
