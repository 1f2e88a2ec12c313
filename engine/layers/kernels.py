"""The kernels that can compute the passes of convolutions and inner products, and the keys under which a choice among
them is kept.

A choice names a kernel for each pass of an op: "direct" is oneDNN's in the precision of the blobs; "fp32" is the same
in float32, for blobs in bf16; "winograd"; those of OWN compute the gradient of weights in bf16. The op itself converts
and reorders blobs for its kernels. Passes without a choice follow rules of thumb, which are in the layers and in the
ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.layers.base import Attribute, Shape

if TYPE_CHECKING:
    from engine.host._core import Tensor

FORWARD, DATA, WEIGHTS = PASSES = ("forward", "data_gradient", "weight_gradient")

WINOGRAD = ([3, 3], [5, 5])  # the sizes of windows that "winograd" can compute
OWN = ("amx", "pairs")  # named after the instructions that they are written for: see csrc/kernels/*_gradient.h

Choice = Mapping[str, str]  # pass -> kernel
Choices = Mapping[str, Choice]  # key of an op -> its choice
UNSEEN = ("eps", "constant", "scale", "shift", *PASSES)  # attributes that keys leave out: they do not change the time


@dataclass(frozen=True)
class Asked:
    """An op of a net whose kernels can be chosen. top: its result. trains: whether it has a backward. choice: the
    kernels that it was built with, as far as they were named."""

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
        """The kernels that there are for each pass that the op has."""
        every = candidates(self.type, self.inputs[0].dtype, self.attributes)
        wanted = {FORWARD: True, DATA: self.trains and _learns(self.inputs[:1])}
        wanted[WEIGHTS] = self.trains and _learns(self.params)
        return {name: every[name] for name in PASSES if wanted[name]}


def candidates(type: str, dtype: str, attributes: Mapping[str, Attribute]) -> dict[str, list[str]]:
    """Returns, for each pass, the kernels that an op with bottoms of this dtype may have. Some may not suit its
    shapes."""
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
    """Returns what tells an op from others that may take another time: "Convolution bf16 32x64x56x56 to 32x64x56x56
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
