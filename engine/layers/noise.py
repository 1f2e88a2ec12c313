"""Adds random numbers to each element, as several forks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.layers.activation import Activation
from engine.layers.base import Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine import proto
    from engine.layers.builder import Builder


class _Numbers(NamedTuple):
    """The numbers to draw: normal ones, with the standard deviation `spread`, or uniform ones, at most `spread` from
    the center. If there are several spreads, each step draws one of them."""

    gaussian: bool
    center: float
    spreads: list[float]


def _happynears(param: proto.NoiseParameter) -> _Numbers:
    gaussian = param.HasField("gaussian_std")
    return _Numbers(gaussian, param.bias, [param.gaussian_std if gaussian else param.uniform_range])


def _winggans(param: proto.NoiseParameter) -> _Numbers:
    if param.noise_type == param.GAUSSIAN:
        return _Numbers(True, param.mean, [param.std_var])
    return _Numbers(False, (param.upper + param.lower) / 2, [(param.upper - param.lower) / 2])


def _of_filler(param: proto.NoiseParameter) -> _Numbers:
    filler = param.filler_param
    if filler.type == "gaussian":
        return _Numbers(True, filler.mean, list(param.std) or [filler.std])
    return _Numbers(False, (filler.max + filler.min) / 2, [(filler.max - filler.min) / 2])


def _yao_zhaos(param: proto.NoiseParameter) -> _Numbers:
    return _Numbers(True, 0.0, [param.sigma])


# The forms of noise_param, each of one or more forks: the fields by which it is known, those that it may have besides,
# whether there is noise in TEST, too, and the function that reads it.
_FORMS = (
    (("gaussian_std", "uniform_range"), ("bias",), False, _happynears),
    (("noise_type", "std_var", "upper", "lower"), ("mean",), False, _winggans),
    (("filler_param",), ("std",), True, _of_filler),
    (("sigma",), (), True, _yao_zhaos),
)


@register("Noise")
class Noise(Activation):
    """Adds a number to each element, drawn anew at each step. Bottom and top: any shape with samples along the first
    axis.

    The fields of noise_param tell whose layer it is:
    - `gaussian_std`, the deviation of normal numbers, or `uniform_range`, the largest of uniform ones, and `bias`,
      which is added to them (happynear).
    - `noise_type` GAUSSIAN with `mean` and `std_var`, or UNIFORM from `lower` to `upper` (winggan).
    - `filler_param`, gaussian or uniform, with one of the deviations `std` for each step, if they are given
      (jyegerlehner, DeepDenoising).
    - `sigma`, the deviation of normal numbers (yao-zhao).

    The first two add noise in TRAIN alone, the others in TEST, too.
    """

    def infer(self) -> list[Shape]:
        if not self.shapes[0]:
            raise self.error("expected a bottom of at least 1 axis, got a scalar")
        _, numbers = self._form()
        param = self.message.noise_param
        if param.HasField("filler_param") and param.filler_param.type not in ("gaussian", "uniform"):
            raise self.error(f"expected a filler_param of type gaussian or uniform, got '{param.filler_param.type}'")
        if min(numbers.spreads) < 0:
            what = "a standard deviation" if numbers.gaussian else "a range"
            raise self.error(f"expected {what} of 0 or more, got {min(numbers.spreads):g} around {numbers.center:g}")
        return super().infer()

    def _form(self) -> tuple[bool, _Numbers]:
        """Returns whether there is noise in TEST, too, and the numbers to draw. Raises ConfigError unless noise_param
        has the fields of one fork."""
        given = {field.name for field, _ in self.message.noise_param.ListFields()}
        for tell, more, at_test, read in _FORMS:
            if given.intersection(tell) and given.issubset((*tell, *more)):
                return at_test, read(self.message.noise_param)
        forms = "; ".join(" or ".join(tell) + (f", {more[0]}" if more else "") for tell, more, *_ in _FORMS)
        got = ", ".join(sorted(given)) or "nothing"
        raise self.error(f"expected in noise_param the fields of one fork ({forms}), got {got}")

    def lower(self, builder: Builder) -> None:
        at_test, numbers = self._form()
        x = builder.tensor(self.bottoms[0])
        if self.training or at_test:
            builder.op("Noise", self, [x], numbers._asdict())
        else:
            builder.op("Dropout", self, [x], {"ratio": 0.0})

    def flops(self) -> int:
        return 20 * super().flops() if self.training or self._form()[0] else 0
