"""Pooling, reductions, and squares of pixels as channels.

ONNX and Caffe count the windows of a pooling by different rules. A Pooling layer is sought whose windows, by Caffe's
rules, are those of the node.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.exchange.from_onnx.padding import convolution, with_pad
from engine.exchange.from_onnx.registry import Unsupported, Value, axes_of, imports
from engine.exchange.from_onnx.weighted import places, window
from engine.exchange.net_maker import Padded
from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader


_MOST_WINDOWS = 1 << 20  # limit along an axis


def _divisors(count: int, kernel: int, stride: int, first: int, counted: tuple[int, int]) -> np.ndarray:
    """Returns how many places each of `count` windows along an axis has, by which an average divides.

    Args:
        first: the place at which the first window begins.
        counted: the places that count: from the first number to before the second.
    """
    starts = first + stride * np.arange(count)
    return np.minimum(counted[1], starts + kernel) - np.maximum(counted[0], starts)


def _caffes_windows(pool: _Pool, pads: Sequence[int], up: bool) -> list[int]:
    """Returns how many windows engine/layers/pooling.py makes along each axis; 0 if it does not allow such a pooling.

    Args:
        up: round the number of windows up.
    """
    found = []
    for size, kernel, stride, pad in zip(pool.x.shape[2:], pool.kernel, pool.strides, pads, strict=True):
        room = size + 2 * pad - kernel
        count = 0 if pad >= kernel else 1 + (-(-room // stride) if up else room // stride)
        found.append(max(0, count - (any(pads) and (count - 1) * stride >= size + pad)))
    return found


class _Pool(NamedTuple):
    """What a pooling node computes, by spatial axis."""

    x: Blob
    kernel: list[int]
    strides: list[int]
    begins: list[int]  # padding before the first place
    wanted: list[int]  # the number of windows
    counted: list[tuple[int, int]]  # the places that an average counts: from the first number to before the second

    def divisors(self, counted: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns along each axis how many places of each window count, if those in `counted` do."""
        firsts = [-begin for begin in self.begins]
        return list(map(_divisors, self.wanted, self.kernel, self.strides, firsts, counted))


def _pool(reader: Reader, node: NodeProto, x: Value, include: bool) -> _Pool:
    """Reads a pooling node. include: its averages count padding. Raises Unsupported for what no layer does."""
    axes = len(x.shape) - 2
    if not 1 <= axes <= 3:
        raise Unsupported(f"a blob of {len(x.shape)} axes")
    if reader.attribute(node, "kernel_shape") is None:
        raise ValueError("no kernel_shape")
    kernel = places(reader, node, "kernel_shape", axes, 1)
    blob, before, behind = with_pad(x, [0] * axes, [0] * axes)
    blob = reader.blob(blob)
    sizes = [size + a + b for size, a, b in zip(blob.shape[2:], before, behind, strict=True)]
    strides, dilations, begins, ends = window(reader, node, sizes, kernel)
    if set(dilations) != {1}:
        raise Unsupported(f"dilations {dilations}")
    up = bool(reader.attribute(node, "ceil_mode", 0))
    wanted, counted = [], []
    for i, size in enumerate(blob.shape[2:]):
        room = sizes[i] + begins[i] + ends[i] - kernel[i]
        count = 1 + (-(-room // strides[i]) if up else room // strides[i])
        count -= up and (count - 1) * strides[i] >= sizes[i] + begins[i]
        if count < 1:
            raise Unsupported(f"a window of {kernel[i]} over a plane of {sizes[i]}")
        if count > _MOST_WINDOWS:
            raise Unsupported(f"{count} windows along an axis: expected {_MOST_WINDOWS} at most")
        first = -before[i] - begins[i]
        counted.append((first, size + behind[i] + ends[i]) if include else (-before[i], size + behind[i]))
        wanted.append(count)
    return _Pool(blob, kernel, strides, [a + b for a, b in zip(before, begins)], wanted, counted)


def _param(pool: _Pool, method: str, pads: Sequence[int], up: bool) -> dict[str, Any]:
    """Returns the fields of a PoolingParameter."""
    param: dict[str, Any] = {"pool": method}
    for name, values in (("kernel", pool.kernel), ("stride", pool.strides), ("pad", pads)):
        if len(set(values)) == 1:
            param["kernel_size" if name == "kernel" else name] = values[0]
        elif len(values) == 2:
            param[f"{name}_h"], param[f"{name}_w"] = values
        elif len(values) == 3:
            param[f"{'kernel_size' if name == 'kernel' else name}_3d"] = values
        else:
            raise Unsupported(f"{name} {values}")
    return {name: value for name, value in param.items() if not (name == "pad" and value == 0)} | (
        {} if up else {"round_mode": "FLOOR"}
    )


@imports("MaxPool")
def _max_pool(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Tries larger padding, too, where that of the node gives other windows in Caffe; windows that this adds before the
    first are cut off again."""
    if len(node.output) > 1 and node.output[1]:
        raise Unsupported("the places of the maxima")
    pool = _pool(reader, node, reader.blob(x), False)  # as a blob: maxima are also of the zeros of a Pad
    before = itertools.product(range(3), repeat=len(pool.kernel))  # how many windows to add along each axis
    for extra, exact, up in itertools.product(before, (True, False), (True, False)):
        pads = [begin + more * stride for begin, more, stride in zip(pool.begins, extra, pool.strides, strict=True)]
        needed = [more + count for more, count in zip(extra, pool.wanted, strict=True)]
        found = _caffes_windows(pool, pads, up)
        if found == needed or (not exact and all(map(operator.ge, found, needed))):
            top = reader.layer("Pooling", [pool.x], pooling_param=_param(pool, "MAX", pads, up))
            for axis, (more, end) in enumerate(zip(extra, needed, strict=True), start=2):
                top = reader.slice(top, axis, more, end)
            return top
    raise Unsupported("windows that no padding of Caffe's gives")


@imports("AveragePool")
def _average_pool(reader: Reader, node: NodeProto, x: Value) -> Value:
    pool = _pool(reader, node, x, bool(reader.attribute(node, "count_include_pad", 0)))
    reader.budget.take(sum(pool.wanted))
    wanted = pool.divisors(pool.counted)
    if any(divisors.min() < 1 for divisors in wanted):
        raise Unsupported("a window that lies within the padding")
    for up, include in itertools.product((True, False), (True, False)):
        sides = zip(pool.x.shape[2:], pool.begins, strict=True)
        counted = [(-pad, size + pad) if include else (0, size) for size, pad in sides]
        same_windows = _caffes_windows(pool, pool.begins, up) == pool.wanted
        if same_windows and all(map(np.array_equal, pool.divisors(counted), wanted)):
            param = _param(pool, "AVE", pool.begins, up) | ({} if include else {"avg_include_pad": False})
            return reader.layer("Pooling", [pool.x], pooling_param=param)
    return _summed(reader, pool, wanted)


def _summed(reader: Reader, pool: _Pool, divisors: Sequence[np.ndarray]) -> Blob:
    """Adds an average pooling as layers that sum each window, by a depthwise convolution with ones, and divide the sums
    by the product of `divisors`, which are those along each axis."""
    axes, channels = len(pool.kernel), pool.x.shape[1]
    ends = [
        max(0, (count - 1) * stride + kernel - size - begin)
        for count, size, kernel, stride, begin in zip(
            pool.wanted, pool.x.shape[2:], pool.kernel, pool.strides, pool.begins, strict=True
        )
    ]
    reader.budget.take(channels * math.prod(pool.kernel) + math.prod(pool.wanted))
    ones = np.ones((channels, 1, *pool.kernel), np.float32)
    sums = convolution(reader, "Convolution", pool.x, ones, None, pool.strides, [1] * axes, pool.begins, ends, channels)
    for axis, count in enumerate(pool.wanted, start=2):
        sums = reader.slice(sums, axis, 0, count)
    counts = np.ones(())
    for each in divisors:
        counts = np.multiply.outer(counts, each.astype(np.float64))
    return reader.layer("Scale", [sums], [1 / counts], scale_param={"axis": 2, "num_axes": axes})


@imports("GlobalAveragePool")
def _global_average_pool(reader: Reader, node: NodeProto, x: Value) -> Value:
    return over_plane(reader, x, "AVE")


@imports("GlobalMaxPool")
def _global_max_pool(reader: Reader, node: NodeProto, x: Value) -> Value:
    return over_plane(reader, x, "MAX")


def over_plane(reader: Reader, x: Value, method: str) -> Blob:
    return reader.layer("Pooling", [x], pooling_param={"pool": method, "global_pooling": True})


@imports("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare", "ReduceL2", "ReduceMin")
def _reduce(reader: Reader, node: NodeProto, x: Value, axes: Value | None = None) -> Value:
    """Makes a Pooling of the whole plane, or for other axes a Reduction, before which a Permute moves them to the
    end."""
    blob, kind = reader.blob(x), node.op_type.removeprefix("Reduce")
    rank, keep = len(blob.shape), reader.attribute(node, "keepdims", 1)
    given = reader.attribute(node, "axes") if axes is None else axes
    if isinstance(given, Blob | Padded):
        raise Unsupported("axes that are not constants here")
    given = () if given is None else given
    if not len(given) and reader.attribute(node, "noop_with_empty_axes", 0):
        return x
    reduced = sorted(axes_of(given if len(given) else range(rank), rank))
    others = [axis for axis in range(rank) if axis not in reduced]
    shape = [1 if axis in reduced else size for axis, size in enumerate(blob.shape) if keep or axis not in reduced]
    if reduced == list(range(2, rank)) and rank == 4 and kind in ("Mean", "Max"):
        return reader.reshape(over_plane(reader, blob, "AVE" if kind == "Mean" else "MAX"), shape)
    operations = {"Mean": "MEAN", "Sum": "SUM", "L1": "ASUM", "SumSquare": "SUMSQ", "L2": "SUMSQ"}
    if kind not in operations:
        return _extreme(reader, blob, kind, reduced, shape)
    if [*others, *reduced] != list(range(rank)):
        blob = reader.layer("Permute", [blob], permute_param={"order": [*others, *reduced]})
    param = {"operation": operations[kind], "axis": len(others)}
    y = reader.layer("Reduction", [blob], reduction_param=param)
    if kind == "L2":
        y = reader.layer("Power", [y], power_param={"power": 0.5})
    return reader.reshape(y, shape)


def _extreme(reader: Reader, blob: Blob, kind: str, reduced: list[int], shape: list[int]) -> Blob:
    """Adds layers for the largest or smallest values along one axis."""
    if len(reduced) != 1:
        raise Unsupported(f"axes {reduced}")
    if kind == "Min":
        blob = reader.layer("Power", [blob], power_param={"scale": -1})
    y = reader.layer("ArgMax", [blob], argmax_param={"axis": reduced[0], "out_max_val": True})
    if kind == "Min":
        y = reader.layer("Power", [y], power_param={"scale": -1})
    return reader.reshape(y, shape)


@imports("SpaceToDepth", "DepthToSpace")
def _depth(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Turns squares of pixels into channels, or channels into squares of pixels."""
    (n, c, h, w), side = reader.blob(x).shape, reader.attribute(node, "blocksize")
    if node.op_type == "SpaceToDepth":
        apart, order = (n, c, h // side, side, w // side, side), [0, 3, 5, 1, 2, 4]
        last = (side * side * c, h // side, w // side)
    else:
        by_depth = reader.attribute(node, "mode", "DCR") == "DCR"
        apart, order = (n, side, side, c // side**2, h, w), [0, 3, 4, 1, 5, 2]
        if not by_depth:
            apart, order = (n, c // side**2, side, side, h, w), [0, 1, 4, 2, 5, 3]
        last = (c // side**2, h * side, w * side)
    if math.prod(apart) != math.prod((n, c, h, w)):
        raise Unsupported(f"a blocksize of {side} for {(c, h, w)}")
    y = reader.layer("Permute", [reader.reshape(x, apart)], permute_param={"order": order})
    return reader.reshape(y, (n, *last))
