"""Which kernels compute the passes of convolutions and inner products: what there is to choose from, and who asks.

A choice names a kernel for each pass of an op: "direct", oneDNN's in the precision of the blobs; "fp32", the same in
float32, for blobs in bf16; "winograd"; OWN, for the gradient of weights in bf16. What converts and reorders blobs for
it is part of the op. Without a choice the rules of thumb hold, those of the layers and those of the ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.layers.base import Attribute, Shape

if TYPE_CHECKING:
    from engine.host._core import Tensor

FORWARD, DATA, WEIGHTS = PASSES = ("forward", "data_gradient", "weight_gradient")

WINOGRAD = ([3, 3], [5, 5])  # kernels of convolutions that it knows
OWN = ("amx", "pairs")  # by the instructions that they are written for: see csrc/kernels/*_gradient.h

Choice = Mapping[str, str]  # by pass, the kernel
Choices = Mapping[str, Choice]  # by key
UNSEEN = ("eps", "constant", "scale", "shift", *PASSES)  # attributes that say nothing about what is to be computed


@dataclass(frozen=True)
class Asked:
    """An op whose kernels can be chosen, as a net has it. top: its result; choice: the kernels that it was built with,
    as far as they were named."""

    layer: str
    key: str
    type: str
    inputs: Sequence[Tensor]
    params: Sequence[Tensor]
    attributes: Mapping[str, Attribute]
    shape: Shape
    top: Tensor
    trains: bool
    choice: Choice
    plain: bool  # parameters are row-major

    @property
    def passes(self) -> dict[str, list[str]]:
        """By pass that it has, the kernels that may be had."""
        every = candidates(self.type, self.inputs[0].dtype, self.attributes)
        wanted = {FORWARD: True, DATA: self.trains and _learns(self.inputs[:1])}
        wanted[WEIGHTS] = self.trains and _learns(self.params)
        return {name: every[name] for name in PASSES if wanted[name]}


def candidates(type: str, dtype: str, attributes: Mapping[str, Attribute]) -> dict[str, list[str]]:
    """By pass, the kernels that an op of such blobs may have; some may turn out not to suit its shapes."""
    if type not in ("Convolution", "InnerProduct"):
        return {name: [] for name in PASSES}
    found = ["direct"]
    if dtype == "bf16":
        found.append("fp32")
    if type == "Convolution" and attributes["kernel"] in WINOGRAD and attributes["stride"] == [1, 1]:
        found.append("winograd")
    more = OWN if type == "Convolution" and dtype == "bf16" else ()
    return {FORWARD: found, DATA: found, WEIGHTS: [*found, *more]}


def key_of(
    type: str,
    inputs: Sequence[Tensor],
    params: Sequence[Tensor],
    attributes: Mapping[str, Attribute],
    shape: Shape,
    trains: bool,
    plain: bool,
) -> str:
    """What tells an op from others, as far as it takes another time: "Convolution bf16 32x64x56x56 to 32x64x56x56
    activation=relu kernel=3x3 pad=1x1 stride=1x1 trains dx dw"."""
    said = {name: value for name, value in attributes.items() if name not in UNSEEN and value}
    words = [type, inputs[0].dtype, _text(inputs[0].shape), "to", _text(shape)]
    words += [f"{name}={_text(said[name])}" for name in sorted(said)]
    learns = params[0].diff if params else None
    flags = {
        "trains": trains,
        "dx": trains and _learns(inputs[:1]),
        "dw": trains and _learns(params),
        "sums": trains and learns is not None and learns.accumulate,
        "plain": plain,
    }
    return " ".join(words + [name for name, on in flags.items() if on])


def _learns(tensors: Sequence[Tensor]) -> bool:
    return any(tensor.diff is not None for tensor in tensors)


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return "1" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
