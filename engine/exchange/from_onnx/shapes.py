"""Operators that move values: reshape, cut, join, transpose, repeat, resize; softmax and the places of maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.from_onnx.elementwise import expanded
from engine.exchange.from_onnx.registry import Unsupported, Value, axes_of, axis_of, imports
from engine.exchange.from_onnx.weighted import constant
from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader


@imports("Flatten")
def _flatten(reader: Reader, node: NodeProto, x: Value) -> Value:
    blob, axis = reader.blob(x), reader.attribute(node, "axis", 1)
    axis = axis + len(blob.shape) if axis < 0 else axis
    if axis == 1 and len(blob.shape) > 1:
        return reader.layer("Flatten", [blob])
    return reader.reshape(blob, (math.prod(blob.shape[:axis]), math.prod(blob.shape[axis:])))


@imports("Reshape")
def _reshape(reader: Reader, node: NodeProto, x: Value, shape: Value | None = None) -> Value:
    blob = reader.blob(x)
    given = reader.attribute(node, "shape") if shape is None else constant(shape, "shapes")
    dims = [int(dim) for dim in given]
    if not reader.attribute(node, "allowzero", 0):
        dims = [blob.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
    if -1 in dims:
        dims[dims.index(-1)] = math.prod(blob.shape) // math.prod(dim for dim in dims if dim != -1)
    if len(dims) == 2 and dims[0] == blob.shape[0] and len(blob.shape) > 2:
        return reader.layer("Flatten", [blob])
    return reader.reshape(blob, dims)


@imports("Squeeze")
def _squeeze(reader: Reader, node: NodeProto, x: Value, axes: Value | None = None) -> Value:
    given = reader.attribute(node, "axes") if axes is None else constant(axes, "axes")
    sizes = enumerate(x.shape)
    gone = {i for i, size in sizes if size == 1} if given is None else set(axes_of(given, len(x.shape)))
    return reader.reshape(x, [size for i, size in enumerate(x.shape) if i not in gone])


@imports("Unsqueeze")
def _unsqueeze(reader: Reader, node: NodeProto, x: Value, axes: Value | None = None) -> Value:
    given = reader.attribute(node, "axes") if axes is None else constant(axes, "axes")
    rank = len(x.shape) + len(given)
    new, sizes = set(axes_of(given, rank)), iter(x.shape)
    return reader.reshape(x, [1 if i in new else next(sizes) for i in range(rank)])


@imports("Transpose")
def _transpose(reader: Reader, node: NodeProto, x: Value) -> Value:
    rank = len(x.shape)
    order = reader.attribute(node, "perm", list(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        raise ValueError(f"perm {order} of {rank} axes")
    return x if order == list(range(rank)) else reader.layer("Permute", [x], permute_param={"order": order})


@imports("Concat")
def _concat(reader: Reader, node: NodeProto, *parts: Value) -> Value:
    blobs = [reader.blob(each) for each in parts]
    axis = axis_of(reader.attribute(node, "axis", 1), len(blobs[0].shape))
    return reader.layer("Concat", blobs, concat_param={"axis": axis} if axis != 1 else {})


@imports("Split")
def _split(reader: Reader, node: NodeProto, x: Value, sizes: Value | None = None) -> Value | Sequence[Value]:
    blob = reader.blob(x)
    axis = axis_of(reader.attribute(node, "axis", 0), len(blob.shape))
    given = reader.attribute(node, "split") if sizes is None else constant(sizes, "sizes").tolist()
    if given is None:
        count = reader.attribute(node, "num_outputs", len(node.output))
        if not 1 <= count <= blob.shape[axis]:
            raise Unsupported(f"{count} parts of an axis of {blob.shape[axis]}")
        each = -(-blob.shape[axis] // count)
        given = [min(each, blob.shape[axis] - i * each) for i in range(count)]
    if len(given) != len(node.output):
        raise ValueError(f"{len(given)} parts for {len(node.output)} outputs")
    points = np.cumsum(given)
    if min(given) < 1 or points[-1] != blob.shape[axis]:
        raise Unsupported(f"sizes {given} of an axis of {blob.shape[axis]}")
    if len(given) == 1:
        return blob
    param = {"axis": axis, "slice_point": [int(point) for point in points[:-1]]}
    tops = reader.layers("Slice", [blob], len(given), slice_param=param)
    unread = [top for name, top in zip(node.output, tops) if not reader.is_read(name)]
    if unread:
        reader.layers("Silence", unread, 0)
    return tops


@imports("Slice")
def _slice(reader: Reader, node: NodeProto, x: Value, *given: Value) -> Value:
    blob = reader.blob(x)
    if given:
        starts, ends, axes, steps = ([*(constant(each, "places") for each in given), None, None])[:4]
    else:
        starts, ends, axes, steps = (*(reader.attribute(node, name) for name in ("starts", "ends", "axes")), None)
    axes = axes_of(range(len(starts)) if axes is None else axes, len(blob.shape))
    if steps is not None and any(step != 1 for step in steps):
        raise Unsupported(f"steps {[int(step) for step in steps]}")
    for axis, start, end in zip(axes, starts, ends, strict=True):
        size = blob.shape[axis]
        begin, stop = (min(max(int(place) + size if place < 0 else int(place), 0), size) for place in (start, end))
        blob = reader.slice(blob, axis, begin, stop)
    return blob


@imports("Expand")
def _expand(reader: Reader, node: NodeProto, x: Value, shape: Value) -> Value:
    blob = reader.blob(x)
    wanted = np.broadcast_shapes(blob.shape, tuple(int(dim) for dim in constant(shape, "shapes")))
    return expanded(reader, blob, wanted)


@imports("Tile")
def _tile(reader: Reader, node: NodeProto, x: Value, repeats: Value) -> Value:
    blob = reader.blob(x)
    for axis, count in enumerate(constant(repeats, "repeats")):
        if count != 1:
            blob = reader.layer("Tile", [blob], tile_param={"axis": axis, "tiles": int(count)})
    return blob


@imports("Softmax", "LogSoftmax")
def _softmax(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Makes a Softmax, for a LogSoftmax with a Log after it. Before opset 13 it is along all axes from `axis` on
    together, which become one here."""
    blob = reader.blob(x)
    rank, old = len(blob.shape), reader.opset < 13
    axis = axis_of(reader.attribute(node, "axis", 1 if old else -1), rank)
    together = old and math.prod(blob.shape[axis + 1 :]) != 1
    if together:
        blob, axis = reader.reshape(blob, (math.prod(blob.shape[:axis]), math.prod(blob.shape[axis:]))), 1
    y = reader.layer("Softmax", [blob], softmax_param={"axis": axis} if axis != 1 else {})
    if together:
        y = reader.reshape(y, x.shape)
    return y if node.op_type == "Softmax" else reader.layer("Log", [y])


@imports("ArgMax")
def _arg_max(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Makes an ArgMax. Of equal values it takes the last; ONNX takes the first unless the node says otherwise."""
    blob = reader.blob(x)
    axis = axis_of(reader.attribute(node, "axis", 0), len(blob.shape))
    y = reader.layer("ArgMax", [blob], argmax_param={"axis": axis})
    if reader.attribute(node, "keepdims", 1):
        return y
    return reader.reshape(y, [size for i, size in enumerate(blob.shape) if i != axis])


@imports("TopK")
def _top_k(reader: Reader, node: NodeProto, x: Value, count: Value | None = None) -> list[Value]:
    """Makes two ArgMax, one for the values and one for their places. An output that nothing reads gets no layer."""
    blob = reader.blob(x)
    top_k = reader.attribute(node, "k") if count is None else int(constant(count, "counts").ravel()[0])
    if not (reader.attribute(node, "largest", 1) and reader.attribute(node, "sorted", 1)):
        raise Unsupported("the smallest values, or values in no order")
    param = {"axis": axis_of(reader.attribute(node, "axis", -1), len(blob.shape)), "top_k": top_k}
    return [
        reader.layer("ArgMax", [blob], argmax_param={**param, "out_max_val": values}) if reader.is_read(name) else blob
        for name, values in zip(node.output, (True, False))
    ]


@imports("Resize", "Upsample")
def _resize(reader: Reader, node: NodeProto, x: Value, *given: Value) -> Value:
    """Makes an Interp for bilinear interpolation with corners aligned, a Deconvolution for pixels that are repeated."""
    blob = reader.blob(x)
    if len(blob.shape) != 4:
        raise Unsupported(f"a blob of {len(blob.shape)} axes")
    size, factors = _resized(reader, node, blob, given)
    mode = reader.attribute(node, "mode", "nearest")
    how = reader.attribute(node, "coordinate_transformation_mode", "half_pixel")
    if node.op_type == "Upsample" or reader.opset < 11:
        how = "asymmetric"
    rounding = reader.attribute(node, "nearest_mode", "round_prefer_floor")
    if node.op_type == "Upsample" or reader.opset < 11:
        rounding = "floor"
    if mode == "nearest" and _repeats(factors, how, rounding):
        return _repeated(reader, blob, [int(factor) for factor in factors])
    if reader.attribute(node, "antialias", 0):
        raise Unsupported("antialias")
    if mode == "linear" and (how == "align_corners" or size == list(blob.shape[2:])):
        return reader.layer("Interp", [blob], interp_param={"height": size[0], "width": size[1]})
    raise Unsupported(f"mode {mode}, {how}, by {factors}: expected align_corners, or whole factors of nearest pixels")


def _resized(
    reader: Reader, node: NodeProto, blob: Blob, given: tuple[Value | None, ...]
) -> tuple[list[int], list[float]]:
    """Returns height and width of the output of a Resize or Upsample, and the factors by which these grow.

    Factors that the node gives are returned as they are: those of the sizes, which are rounded down, may differ.
    """
    given = (None, *given) if node.op_type == "Upsample" or reader.opset < 11 else given
    scales = given[1] if len(given) > 1 else None
    sizes = given[2] if len(given) > 2 else None
    axes = axes_of(reader.attribute(node, "axes") or range(4), 4)
    if (policy := reader.attribute(node, "keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise Unsupported(f"keep_aspect_ratio_policy {policy}")
    dims = list(blob.shape)
    if sizes is not None:
        new = [int(size) for size in constant(sizes, "sizes")]
        by = [size / dims[axis] for axis, size in zip(axes, new, strict=True)]
    else:
        said = reader.attribute(node, "scales") if scales is None else constant(scales, "scales")
        by = [float(factor) for factor in said]
        new = [math.floor(dims[axis] * factor) for axis, factor in zip(axes, by, strict=True)]
    factors = [1.0] * 4
    for axis, size, factor in zip(axes, new, by, strict=True):
        dims[axis], factors[axis] = size, factor
    if tuple(dims[:2]) != blob.shape[:2]:
        raise Unsupported("another batch or other channels")
    return dims[2:], factors[2:]


def _repeats(factors: list[float], how: str, rounding: str) -> bool:
    """Returns whether every pixel becomes as many equal ones as the factor says.

    Args:
        how: the node's coordinate_transformation_mode.
        rounding: its nearest_mode.
    """
    if any(factor < 1 or factor != int(factor) for factor in factors):
        return False
    if how in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        return rounding.startswith("round")
    return how == "asymmetric" and (rounding == "floor" or factors == [1, 1])


def _repeated(reader: Reader, blob: Blob, factors: list[int]) -> Blob:
    """Repeats pixels by a depthwise Deconvolution with ones, whose windows do not overlap."""
    channels = blob.shape[1]
    reader.budget.take(channels * math.prod(factors))
    sides = [factors[0]] if factors[0] == factors[1] else factors
    param = {
        "num_output": channels,
        "group": channels,
        "kernel_size": sides,
        "stride": sides,
        "bias_term": False,
    }
    return reader.layer("Deconvolution", [blob], [np.ones((channels, 1, *factors))], convolution_param=param)
