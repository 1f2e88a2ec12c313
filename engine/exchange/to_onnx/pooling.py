"""Layers of windows over planes: Pooling, Upsample, SPP, LRN, ROIPooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.to_onnx.registry import Inexpressible, exports

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.lrn import LRN
    from engine.layers.pooling import Pooling
    from engine.layers.roi_pooling import ROIPooling
    from engine.layers.spp import SPP
    from engine.layers.upsample import Upsample


@exports("Pooling")
def _pooling(out: Writer, layer: Pooling, x: str) -> str | list[str]:
    if layer.param.pool == layer.param.STOCHASTIC:
        raise Inexpressible("STOCHASTIC")
    if layer.param.global_pooling:
        if len(layer.tops) > 1:
            raise Inexpressible("global, with the places of its maxima")
        return out.op("GlobalMaxPool" if layer.param.pool == layer.param.MAX else "GlobalAveragePool", x)
    y = pooled(out, layer, x, layer.tops[0].shape)
    return y if len(layer.tops) == 1 else [y, _places(out, layer, y)]


def _places(out: Writer, layer: Pooling, y: str) -> str:
    """Writes the second top of a max pooling, the places of the maxima.

    ONNX counts them through the whole blob, Caffe through a plane. So they are of use only to an Upsample, which puts
    values back there in planes of the same size. Raises Inexpressible if any other layer reads them.
    """
    readers = out.readers.get(layer.tops[1], ())
    if not readers or any(reader.type != "Upsample" or reader.bottoms[1] is not layer.tops[1] for reader in readers):
        raise Inexpressible("with places of its maxima for others than Upsample")
    places = out.second(y)
    out.planes[places] = layer.shapes[0][2:]
    return places


@exports("Upsample")
def _upsample(out: Writer, layer: Upsample, x: str, *places: str) -> str:
    top = layer.tops[0].shape[2:]
    if not places:
        method = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return out.op("Resize", x, "", "", list(top), axes=[2, 3], **method)
    if tuple(out.planes.get(places[0], ())) != tuple(top):
        raise Inexpressible("to planes of another size than its places are of")
    batch_and_channels = out.op("Shape", x, end=2)
    return out.op(
        "MaxUnpool", x, places[0], out.op("Concat", batch_and_channels, list(top), axis=0), kernel_shape=[1, 1]
    )


def pooled(out: Writer, layer: Pooling, x: str, top: Sequence[int]) -> str:
    """Writes a Pooling; top: the shape of its top.

    In Caffe the last window of an axis may reach beyond the bottom and its padding, in ONNX it may not: the node gets
    as much padding at the end as the windows need. Averages count places of Caffe's padding, but none beyond it.
    """
    window = layer.window
    sizes = list(zip(layer.shapes[0][2:], top[2:], window["kernel"], window["stride"], window["pad"], strict=True))
    ends = [max(0, (count - 1) * stride + kernel - size - pad) for size, count, kernel, stride, pad in sizes]
    attributes = {"kernel_shape": window["kernel"], "strides": window["stride"]}
    pads = window["pad"]
    if layer.param.pool == layer.param.MAX:
        if any(end >= kernel for end, kernel in zip(ends, window["kernel"], strict=True)):
            return _maxima_beyond(out, layer, x, ends)
        return out.op("MaxPool", x, **attributes, pads=[*pads, *ends])
    if not layer.param.avg_include_pad or not any([*pads, *ends]):
        return out.op("AveragePool", x, **attributes, pads=[*pads, *ends])
    if all(end <= pad for end, pad in zip(ends, pads, strict=True)):
        return out.op("AveragePool", x, **attributes, pads=[*pads, *ends], count_include_pad=1)
    if any(pads):
        x = out.op("Pad", x, np.array([0, 0, *pads, 0, 0, *pads]), 0.0)
    beyond = [max(0, end - pad) for end, pad in zip(ends, pads, strict=True)]
    return out.op("AveragePool", x, **attributes, pads=[*[0] * len(pads), *beyond])


def _maxima_beyond(out: Writer, layer: Pooling, x: str, ends: Sequence[int]) -> str:
    """Writes a max pooling whose last window of an axis lies beyond the bottom, which has no padding then. The bottom
    is padded with the lowest float32, which is Caffe's maximum of such a window."""
    if len(layer.tops) > 1:
        raise Inexpressible("with places of its maxima and windows beyond the bottom")
    lowest = float(np.finfo(np.float32).min)
    x = out.op("Pad", x, np.array([0] * (4 + len(ends)) + list(ends)), lowest)
    return out.op("MaxPool", x, kernel_shape=layer.window["kernel"], strides=layer.window["stride"])


@exports("SPP")
def _spp(out: Writer, layer: SPP, x: str) -> str:
    if len(layer.levels()) == 1:
        return pooled(out, layer.levels()[0][0], x, layer.tops[0].shape)
    rows = [out.op("Flatten", pooled(out, pooling, x, top), axis=1) for pooling, top in layer.levels()]
    return out.op("Concat", *rows, axis=1)


@exports("LRN")
def _lrn(out: Writer, layer: LRN, x: str) -> str:
    param = layer.param
    if layer.across:
        return out.op("LRN", x, size=param.local_size, alpha=param.alpha, beta=param.beta, bias=param.k)
    side, reach = [param.local_size] * 2, [param.local_size // 2] * 4
    mean = out.op("AveragePool", out.op("Mul", x, x), kernel_shape=side, pads=reach, count_include_pad=1)
    scale = out.op("Add", out.op("Mul", mean, param.alpha), 1.0)
    return out.op("Mul", x, out.op("Pow", scale, -param.beta))


@exports("ROIPooling")
def _roi_pooling(out: Writer, layer: ROIPooling, x: str, regions: str) -> str:
    param = layer.param
    if len(layer.shapes[1]) != 2:
        regions = out.reshape(regions, [out.dims(layer.bottoms[1])[0], 5])
    size = list(layer.tops[0].shape[2:])
    return out.op("MaxRoiPool", x, regions, pooled_shape=size, spatial_scale=param.spatial_scale)
