"""Pooling: the windows of ONNX's rules, found among those that Caffe's rules give."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.exchange.from_onnx.padding import taken
from engine.exchange.from_onnx.registry import Unsupported, Value, imports
from engine.exchange.from_onnx.weighted import window
from engine.exchange.net_maker import Padded
from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader


class Axis(NamedTuple):
    """Windows along one axis: where each begins and ends within the blob, and how many places an average counts."""

    begins: list[int]
    ends: list[int]
    counts: list[int]


def _windows(size: int, kernel: int, stride: int, first: int, count: int, counted: tuple[int, int]) -> Axis:
    """The first window begins at `first`; `counted`: the places from one to before the other count."""
    starts = [first + i * stride for i in range(count)]
    return Axis(
        [max(0, start) for start in starts],
        [min(size, start + kernel) for start in starts],
        [min(counted[1], start + kernel) - max(counted[0], start) for start in starts],
    )


def _caffes(size: int, kernel: int, stride: int, pad: int, up: bool, include: bool) -> Axis | None:
    """By the rules of engine/layers/pooling.py; None where they allow no such pooling."""
    room = size + 2 * pad - kernel
    if pad >= kernel or (room < 0 and not up):
        return None
    count = 1 + (-(-room // stride) if up else room // stride)
    if count < 1:
        return None
    count -= (count - 1) * stride >= size + pad
    return _windows(size, kernel, stride, -pad, count, (-pad, size + pad) if include else (0, size))


class _Pool(NamedTuple):
    """A node along its spatial axes."""

    x: Blob
    kernel: list[int]
    strides: list[int]
    begins: list[int]  # padding before
    wanted: list[Axis]


def _pool(reader: Reader, node: NodeProto, x: Value, include: bool) -> _Pool:
    kernel = reader.attribute(node, "kernel_shape")
    blob, before, behind = taken(x, [0] * len(kernel), [0] * len(kernel))
    blob = reader.blob(blob)
    sizes = [size + a + b for size, a, b in zip(blob.shape[2:], before, behind, strict=True)]
    strides, dilations, begins, ends = window(reader, node, sizes, kernel)
    if set(dilations) != {1}:
        raise Unsupported(f"dilations {dilations}")
    up = bool(reader.attribute(node, "ceil_mode", 0))
    wanted = []
    for i, size in enumerate(blob.shape[2:]):
        room = sizes[i] + begins[i] + ends[i] - kernel[i]
        count = 1 + (-(-room // strides[i]) if up else room // strides[i])
        count -= up and (count - 1) * strides[i] >= sizes[i] + begins[i]
        if count < 1:
            raise Unsupported(f"a window of {kernel[i]} over a plane of {sizes[i]}")
        first = -before[i] - begins[i]
        counted = (first, size + behind[i] + ends[i]) if include else (-before[i], size + behind[i])
        wanted.append(_windows(size, kernel[i], strides[i], first, count, counted))
    return _Pool(blob, kernel, strides, [a + b for a, b in zip(before, begins)], wanted)


def _param(pool: _Pool, method: str, pads: Sequence[int], up: bool) -> dict[str, Any]:
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
    """With more windows before the first where Caffe's padding has to be larger, which are cut off."""
    if len(node.output) > 1 and node.output[1]:
        raise Unsupported("the places of the maxima")
    pool = _pool(reader, node, reader.blob(x), False)  # zeros of a Pad take part
    before = itertools.product(range(3), repeat=len(pool.kernel))  # windows that are cut off, along each axis
    for extra, exact, up in itertools.product(before, (True, False), (True, False)):
        pads = [begin + more * stride for begin, more, stride in zip(pool.begins, extra, pool.strides, strict=True)]
        found = [
            _caffes(size, kernel, stride, pad, up, False)
            for size, kernel, stride, pad in zip(pool.x.shape[2:], pool.kernel, pool.strides, pads, strict=True)
        ]
        if all(map(_covers, found, extra, pool.wanted, [exact] * len(found))):
            top = reader.layer("Pooling", [pool.x], pooling_param=_param(pool, "MAX", pads, up))
            for axis, (more, wanted) in enumerate(zip(extra, pool.wanted, strict=True), start=2):
                top = reader.slice(top, axis, more, more + len(wanted.begins))
            return top
    raise Unsupported("windows that no padding of Caffe's gives")


def _covers(axis: Axis | None, skipped: int, wanted: Axis, exact: bool) -> bool:
    """Whether the windows from `skipped` on are the wanted ones; unless `exact`, more may follow."""
    if axis is None:
        return False
    part = slice(skipped, skipped + len(wanted.begins))
    if exact and len(axis.begins) != skipped + len(wanted.begins):
        return False
    return (axis.begins[part], axis.ends[part]) == (wanted.begins, wanted.ends)


@imports("AveragePool")
def _average_pool(reader: Reader, node: NodeProto, x: Value) -> Value:
    pool = _pool(reader, node, x, bool(reader.attribute(node, "count_include_pad", 0)))
    for up, include in itertools.product((True, False), (True, False)):
        found = [
            _caffes(size, kernel, stride, pad, up, include)
            for size, kernel, stride, pad in zip(pool.x.shape[2:], pool.kernel, pool.strides, pool.begins, strict=True)
        ]
        if found == pool.wanted:
            param = _param(pool, "AVE", pool.begins, up) | ({} if include else {"avg_include_pad": False})
            return reader.layer("Pooling", [pool.x], pooling_param=param)
    return _summed(reader, pool)


def _summed(reader: Reader, pool: _Pool) -> Blob:
    """The sum of each window, by a convolution of each channel with ones, over the number of its places."""
    from engine.exchange.from_onnx.padding import convolution

    axes, channels = len(pool.kernel), pool.x.shape[1]
    ends = [
        max(0, (len(axis.begins) - 1) * stride + kernel - size - begin)
        for axis, size, kernel, stride, begin in zip(
            pool.wanted, pool.x.shape[2:], pool.kernel, pool.strides, pool.begins, strict=True
        )
    ]
    ones = np.ones((channels, 1, *pool.kernel), np.float32)
    sums = convolution(reader, "Convolution", pool.x, ones, None, pool.strides, [1] * axes, pool.begins, ends, channels)
    for axis, wanted in enumerate(pool.wanted, start=2):
        sums = reader.slice(sums, axis, 0, len(wanted.begins))
    counts = np.ones(())
    for wanted in pool.wanted:
        counts = np.multiply.outer(counts, np.array(wanted.counts, np.float64))
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
    """Pooling of the whole plane; or, of other axes, a Reduction of them, moved to the end."""
    blob, kind = reader.blob(x), node.op_type.removeprefix("Reduce")
    rank, keep = len(blob.shape), reader.attribute(node, "keepdims", 1)
    given = reader.attribute(node, "axes") if axes is None else axes
    if isinstance(given, Blob | Padded):
        raise Unsupported("axes that are computed from data")
    given = () if given is None else given
    if not len(given) and reader.attribute(node, "noop_with_empty_axes", 0):
        return x
    reduced = sorted({int(axis) % rank for axis in (given if len(given) else range(rank))})
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
    """The largest or smallest along one axis."""
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
    """Squares of pixels become channels, or the other way round."""
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
