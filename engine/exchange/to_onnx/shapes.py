"""Layers that move values: reshape, cut, join, permute, repeat, resize, choose and reduce."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.exchange.to_onnx.registry import Inexpressible, exports

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.arg_max import ArgMax
    from engine.layers.base import Layer
    from engine.layers.concat import Concat
    from engine.layers.crop import Crop
    from engine.layers.interp import Interp
    from engine.layers.permute import Permute
    from engine.layers.prior_box import PriorBox
    from engine.layers.reduction import Reduction
    from engine.layers.reorg import Reorg
    from engine.layers.slice import Slice
    from engine.layers.tile import Tile

FLOAT, INT64 = 1, 7  # TensorProto's numbers


@exports("Flatten")
def _flatten(out: Writer, layer: Layer, x: str) -> str:
    shape, top = layer.shapes[0], layer.tops[0].shape
    if len(top) == 2 and shape[:1] == top[:1]:
        return out.op("Flatten", x, axis=1)
    return out.reshape(x, out.dims(layer.tops[0]))


@exports("Reshape")
def _reshape(out: Writer, layer: Layer, x: str) -> str:
    return out.reshape(x, out.dims(layer.tops[0]))


@exports("Concat")
def _concat(out: Writer, layer: Concat, *bottoms: str) -> str:
    return bottoms[0] if len(bottoms) == 1 else out.op("Concat", *bottoms, axis=layer.axis)


@exports("Slice")
def _slice(out: Writer, layer: Slice, x: str) -> str | list[str]:
    if len(layer.tops) == 1:
        return x
    sizes = [out.dims(top)[layer.axis] for top in layer.tops]
    if None in sizes and layer.message.slice_param.slice_point:
        raise Inexpressible("cuts at places of an axis that grows with the batch")
    if None in sizes:
        return out.ops("Split", len(sizes), x, axis=layer.axis, num_outputs=len(sizes))
    return out.ops("Split", len(sizes), x, sizes, axis=layer.axis)  # type: ignore[arg-type]


@exports("Crop")
def _crop(out: Writer, layer: Crop, x: str, window: str) -> str:
    top, offsets = out.dims(layer.tops[0]), layer.offsets
    axes = [axis for axis in range(layer.axis, len(top)) if layer.shapes[0][axis] != layer.tops[0].shape[axis]]
    if not axes:
        return x
    if any(top[axis] is None for axis in axes):
        raise Inexpressible("a cut of an axis that grows with the batch")
    begins = [offsets[axis] for axis in axes]
    ends = [offsets[axis] + layer.tops[0].shape[axis] for axis in axes]
    return out.op("Slice", x, begins, ends, axes)


@exports("Permute")
def _permute(out: Writer, layer: Permute, x: str) -> str:
    order = layer.order
    return x if order == sorted(order) else out.op("Transpose", x, perm=order)


@exports("Reorg")
def _reorg(out: Writer, layer: Reorg, x: str) -> str:
    n, s, reverse = out.dims(layer.bottoms[0])[0], layer.stride, layer.message.reorg_param.reverse
    c, h, w = layer.shapes[0][1:]
    if reverse:
        x = out.op("Transpose", out.reshape(x, [n, s, s, c // s**2, h, w]), perm=[0, 3, 4, 1, 5, 2])
    else:
        x = out.op("Transpose", out.reshape(x, [n, c // s**2, h, s, w, s]), perm=[0, 3, 5, 1, 2, 4])
    return out.reshape(x, out.dims(layer.tops[0]))


@exports("ShuffleChannel")
def _shuffle_channel(out: Writer, layer: Layer, x: str) -> str:
    n, group = out.dims(layer.bottoms[0])[0], layer.message.shuffle_channel_param.group
    channels, inner = layer.shapes[0][1], math.prod(layer.shapes[0][2:])
    x = out.op("Transpose", out.reshape(x, [n, group, channels // group, inner]), perm=[0, 2, 1, 3])
    return out.reshape(x, out.dims(layer.tops[0]))


@exports("Tile")
def _tile(out: Writer, layer: Tile, x: str) -> str:
    repeats = [1] * len(layer.shapes[0])
    repeats[layer.axis] = layer.message.tile_param.tiles
    return out.op("Tile", x, repeats)


@exports("BatchReindex")
def _batch_reindex(out: Writer, layer: Layer, x: str, rows: str) -> str:
    return out.op("Gather", x, out.op("Cast", rows, to=INT64), axis=0)


@exports("Interp")
def _interp(out: Writer, layer: Interp, x: str) -> str:
    param = layer.param
    if param.pad_beg or param.pad_end:
        ends = [size + param.pad_end for size in layer.shapes[0][2:]]
        x = out.op("Slice", x, [-param.pad_beg] * 2, ends, [2, 3])
    height, width = layer.tops[0].shape[2:]
    method = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return out.op("Resize", x, "", "", [height, width], axes=[2, 3], **method)


@exports("Reduction")
def _reduction(out: Writer, layer: Reduction, x: str) -> str:
    param = layer.message.reduction_param
    axes = list(range(layer.axis, len(layer.shapes[0])))
    names = {param.SUM: "ReduceSum", param.ASUM: "ReduceL1", param.SUMSQ: "ReduceSumSquare", param.MEAN: "ReduceMean"}
    y = out.op(names[param.operation], x, axes, keepdims=0)
    return y if param.coeff == 1 else out.op("Mul", y, param.coeff)


@exports("ArgMax")
def _arg_max(out: Writer, layer: ArgMax, x: str) -> str:
    """Writes an ArgMax. Of equal values it takes the last, as Caffe does; for top_k above 1, TopK may take others."""
    param, by_sample = layer.param, not layer.param.HasField("axis")
    axis = 1 if by_sample else layer.canonical_axis(param.axis, len(layer.shapes[0]))
    if by_sample:
        x = out.op("Flatten", x, axis=1)
    if param.top_k == 1:
        places = out.op("ArgMax", x, axis=axis, select_last_index=1)
        values = out.op("ReduceMax", x, [axis]) if param.out_max_val else ""
    else:
        values, places = out.ops("TopK", 2, x, [param.top_k], axis=axis)
    places = out.op("Cast", places, to=FLOAT)
    if not by_sample:
        return values if param.out_max_val else places
    if param.out_max_val:
        places = out.op("Concat", places, values, axis=1)
    return out.reshape(places, out.dims(layer.tops[0]))


@exports("PriorBox")
def _prior_box(out: Writer, layer: PriorBox, *bottoms: str) -> str:
    """Writes a PriorBox as a constant, since it depends on shapes alone."""
    return out.constant(layer.boxes().reshape(layer.tops[0].shape))
