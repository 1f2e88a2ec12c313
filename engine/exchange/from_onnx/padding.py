"""Padding, and convolutions whose padding differs at the two ends of an axis: Caffe's layers pad both ends alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.exchange.from_onnx.registry import Unsupported, Value, axes_of, imports, surrounded
from engine.exchange.net_maker import Padded
from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader

MOST_PLACES = 1 << 20  # limit of kernels, strides, dilations and padding along an axis


@imports("Pad")
def _pad(
    reader: Reader,
    node: NodeProto,
    x: Value,
    pads: Value | None = None,
    value: Value | None = None,
    axes: Value | None = None,
) -> Value:
    """Returns a Padded: the layer that reads it may be able to pad itself. Only zeros along spatial axes are
    supported."""
    if reader.attribute(node, "mode", "constant") != "constant":
        raise Unsupported(f"mode {reader.attribute(node, 'mode')}")
    if isinstance(value, Blob | Padded):
        raise Unsupported("a filling that is not a constant here")
    filling = float(np.ravel(value)[0]) if value is not None and value.size else 0.0
    if reader.attribute(node, "value", filling) != 0:
        raise Unsupported("padding with anything but zeros")
    given = reader.attribute(node, "pads") if pads is None else pads
    if given is None or isinstance(given, Blob | Padded):
        raise Unsupported("pads that are not constants here")
    given, rank = [int(each) for each in given], len(x.shape)
    along = range(rank) if axes is None else axes_of(axes, rank)  # type: ignore[arg-type]
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(along, given[: len(given) // 2], given[len(given) // 2 :], strict=True):
        begins[axis], ends[axis] = begin, end
    if not any(begins + ends):
        return x
    if rank < 3 or any(begins[:2] + ends[:2]) or min(begins + ends) < 0:
        raise Unsupported(f"pads {given}: expected none below zero, and none of batch and channels")
    if max(begins + ends) > MOST_PLACES:
        raise Unsupported(f"pads {given}: expected {MOST_PLACES} at most")
    before = x if isinstance(x, Padded) else Padded(reader.blob(x), [0] * (rank - 2), [0] * (rank - 2))
    sums = [[a + b for a, b in zip(*each)] for each in ((before.begins, begins[2:]), (before.ends, ends[2:]))]
    return Padded(before.blob, *sums)


def padded(reader: Reader, value: Padded) -> Blob:
    """Adds the padding of a blob as a layer: a depthwise convolution with kernels of a single 1."""
    axes, channels = len(value.begins), value.blob.shape[1]
    reader.budget.take(channels)
    weights = np.ones((channels, 1, *[1] * axes), np.float32)
    return convolution(reader, "Convolution", value, weights, None, [1] * axes, [1] * axes, [0] * axes, [0] * axes,
                       channels)  # fmt: skip


def with_pad(x: Value, begins: Sequence[int], ends: Sequence[int]) -> tuple[Value, list[int], list[int]]:
    """Returns a value and the padding at its beginnings and ends; for a Padded its blob, and the sum of its padding and
    the given one."""
    if not isinstance(x, Padded):
        return x, list(begins), list(ends)
    return x.blob, [a + b for a, b in zip(x.begins, begins)], [a + b for a, b in zip(x.ends, ends)]


def convolution(
    reader: Reader,
    type: str,
    x: Value,
    weights: np.ndarray,
    bias: np.ndarray | None,
    stride: Sequence[int],
    dilation: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    group: int,
) -> Blob:
    """Adds a convolution whose padding may differ at the two ends of an axis.

    Its layer has the larger padding at both ends, and a kernel with added zeros at the end that has too much, so that
    it computes the same values.

    Args:
        type: of the layer.
        begins, ends: the padding of each spatial axis.
    """
    x, begins, ends = with_pad(x, begins, ends)
    pads = [_larger(begin, end, step) for begin, end, step in zip(begins, ends, dilation, strict=True)]
    zeros = [
        ((pad - begin) // step, (pad - end) // step)
        for pad, begin, end, step in zip(pads, begins, ends, dilation, strict=True)
    ]
    weights = surrounded(reader.budget, weights, [(0, 0), (0, 0), *zeros])
    arrays = [weights] if bias is None else [weights, bias]
    param = {
        "num_output": weights.shape[0],
        "kernel_size": shortest(weights.shape[2:]),
        "pad": shortest(pads),
        "stride": shortest(stride),
        "dilation": shortest(dilation),
        "group": group,
        "bias_term": bias is not None,
    }
    return reader.layer(type, [x], arrays, convolution_param=without_defaults(param))


def shortest(values: Sequence[int]) -> list[int]:
    """Returns the values of all axes; a single one if they are equal, as ConvolutionParameter allows."""
    return [int(values[0])] if len(set(values)) == 1 else [int(value) for value in values]


def without_defaults(param: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a ConvolutionParameter that differ from their defaults."""
    defaults = {"pad": [0], "stride": [1], "dilation": [1], "group": 1, "bias_term": True}
    return {name: value for name, value in param.items() if defaults.get(name) != value}


def _larger(begin: int, end: int, step: int) -> int:
    """Returns the larger padding. Raises Unsupported if zeros of a kernel with dilation `step` cannot make up the
    difference."""
    if (begin - end) % step:
        raise Unsupported(f"pads of {begin} and {end} with a dilation of {step}")
    return max(begin, end)
