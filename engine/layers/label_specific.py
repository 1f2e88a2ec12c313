"""Changes the score of each sample's own class by margins and weights, as layers of happynear's fork do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from engine.layers.base import Attributes, Layer, Parameter, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


class LabelSpecific(Layer):
    """The base of layers that change the score of each sample's own class. Bottoms: scores (N, ...), labels (N); tops:
    the changed scores (N, ...) and, if given, the numbers by which this step has changed them (`numbers`).

    Numbers that change in the course of a training follow from the solver's iteration i, which counts from 0. So a run
    that is resumed goes on with the same ones.
    """

    bottom_range = (2, 2)
    top_range = (1, 2)
    first_top_learns = True
    constant_bottoms = frozenset({1})
    numbers: ClassVar[int] = 1  # how many numbers the second top has

    def infer(self) -> list[Shape]:
        scores, labels = self.shapes
        if not scores or math.prod(labels) != scores[0]:
            raise self.error(f"expected one label for each sample of {scores}, got {labels}")
        return [scores, (self.numbers,)][: len(self.message.top)]

    def fields(self, param, *names: str) -> Attributes:
        """Returns the values of a message's fields, by name."""
        return {name: getattr(param, name) for name in names}

    def lower(self, builder: Builder) -> None:
        inputs = builder.plain_bottoms(self)
        builder.op(self.type, self, inputs, self.attributes())


@register("LabelSpecificAdd")
class LabelSpecificAdd(LabelSpecific):
    """In TRAIN the own score x becomes x + b if that is above 0, and stays x if not (happynear's layer). Bottoms, tops:
    see LabelSpecific.

    b is `bias` or, if `bias_base` is given, bias_base + (1 + bias_gamma (iteration + i))^bias_power - 1, between
    bias_min and bias_max.
    """

    def attributes(self) -> Attributes:
        param = self.message.label_specific_add_param
        names = ("bias", "bias_base", "bias_gamma", "bias_power", "bias_min", "bias_max", "iteration")
        if not self.training:
            return {**self.fields(param, *names), "anneal": False, "bias": 0.0}
        return {**self.fields(param, *names), "anneal": param.HasField("bias_base")}


@register("LabelSpecificMargin")
class LabelSpecificMargin(LabelSpecific):
    """In TRAIN the own score x, the cosine of an angle, becomes the cosine of that angle plus m degrees
    (happynear's layer). Bottoms, tops: see LabelSpecific; params: the margin (1), which nothing changes.

    If `margin_base` is given, m is margin_base + (1 + gamma (iteration + i))^power - 1, else the parameter. If
    `margin_max` is given, m is at most that.

    As in the fork's GPU code, x is limited to +-(1 - 1e-4), and the slope to 0 and 2. The slope is the derivative,
    cos m + sin m x / sqrt(1 - x^2); the fork subtracts the second term.
    """

    @property
    def param(self):
        return self.message.label_specific_margin_param

    def infer(self) -> list[Shape]:
        if self.param.type == self.param.SOFT or self.param.auto_tune:
            raise self.error("expected neither type SOFT nor auto_tune, which happynear's fork has on GPUs only")
        return super().infer()

    def make_params(self) -> list[Parameter]:
        return [Parameter((1,), values=np.full(1, self.param.margin_base, np.float32), lr_mult=0.0, frozen=True)]

    def attributes(self) -> Attributes:
        param = self.param
        anneals, limited = param.HasField("margin_base"), param.HasField("margin_max")
        numbers = self.fields(param, "margin_base", "margin_max", "gamma", "power", "iteration")
        if not self.training:
            return {**numbers, "anneal": True, "limited": False, "margin_base": 0.0, "gamma": 0.0}
        return {**numbers, "anneal": anneals, "limited": limited}


@register("LabelSpecificAffine")
class LabelSpecificAffine(LabelSpecific):
    """In TRAIN the own score x, an angle, becomes s pi^(1 - p) x^p plus b degrees, and at most pi - 1e-4
    (happynear's layer). Bottoms, tops: see LabelSpecific; params: three numbers, which nothing reads.

    - s = min(scale_max, scale_base (1 + scale_gamma (iteration + i))^scale_power)
    - b = min(bias_max, bias_base + (1 + bias_gamma (iteration + i))^bias_power - 1)
    - p = max(power_min, power_base (1 + power_gamma (iteration + i))^power_power)

    This is what the fork's GPU code computes; its CPU code has the older s x + b, without degrees.
    """

    numbers = 3

    @property
    def param(self):
        return self.message.label_specific_affine_param

    def infer(self) -> list[Shape]:
        if self.param.auto_tune:
            raise self.error("expected no auto_tune, which happynear's fork says does not work")
        return super().infer()

    def make_params(self) -> list[Parameter]:
        values = np.array([self.param.scale_base, self.param.bias_base, 0], np.float32)
        return [Parameter((3,), values=values, lr_mult=0.0, frozen=True)]

    def attributes(self) -> Attributes:
        kinds = {"scale": ("base", "gamma", "power", "max"), "bias": ("base", "gamma", "power", "max")}
        kinds["power"] = ("base", "gamma", "power", "min")
        names = [f"{kind}_{what}" for kind, all_of_it in kinds.items() for what in all_of_it]
        numbers = self.fields(self.param, "iteration", *names)
        if self.training:
            return numbers
        gammas = {f"{kind}_gamma": 0.0 for kind in kinds}
        limits = {"scale_max": 1.0, "bias_max": 0.0, "power_min": 1.0}
        return {**numbers, **gammas, **limits, "scale_base": 1.0, "bias_base": 0.0, "power_base": 1.0}


@register("LabelSpecificRescale")
class LabelSpecificRescale(LabelSpecific):
    """In TRAIN, and with `rescale_test` in TEST, too, the own score x becomes w x, and all others are multiplied by
    `negative_weight` (happynear's layer). Bottoms, tops: see LabelSpecific.

    w is `positive_weight`. In TRAIN, if `positive_weight_base` is given, it is positive_weight_base (1 + gamma
    (iteration + i + 1))^-power, between positive_weight_min and positive_weight_max if these are given. With
    `power_on_positive` x becomes sign(x) |x|^w, with `bias_fix` w x + 1 - w. With `for_ip` it changes only if it is
    above 0.
    """

    def attributes(self) -> Attributes:
        param = self.message.label_specific_rescale_param
        anneals = param.HasField("positive_weight_base") and self.training
        idle = not (self.training or param.rescale_test)
        return {
            **self.fields(param, "positive_weight_base", "gamma", "power", "iteration"),
            "anneal": anneals,
            "positive_weight": 1.0 if idle else param.positive_weight,
            "negative_weight": 1.0 if idle else param.negative_weight,
            "least": param.positive_weight_min if param.HasField("positive_weight_min") else -math.inf,
            "most": param.positive_weight_max if param.HasField("positive_weight_max") else math.inf,
            "positive_only": param.for_ip,
            "as_power": param.power_on_positive,
            "bias_fix": param.bias_fix,
        }
