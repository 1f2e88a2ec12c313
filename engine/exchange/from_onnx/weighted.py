"""Convolutions, matrix products, embeddings, normalisations, pooling of regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.exchange.from_onnx.padding import MOST_PLACES, convolution, shortest, without_defaults
from engine.exchange.from_onnx.registry import Unsupported, Value, axis_of, imports, surrounded
from engine.layers.base import Blob

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader


# With SAME_*, strides larger than the kernel can ask for padding below zero. ONNX's text only knows padding that adds
# places, but below this number ONNX Runtime cuts places off the input of a convolution, and refuses a pooling.
_CUT = -2


def constant(value: Value | None, what: str) -> np.ndarray:
    """Returns a value that has to be a constant. Raises Unsupported, which names `what`, if it is something else."""
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"{what} that are not constants here")
    return value


def places(reader: Reader, node: NodeProto, name: str, count: int, default: int, least: int = 1) -> list[int]:
    """Returns an attribute of `count` numbers, one for each axis or for each end of one.

    Raises ValueError for other than `count` whole numbers or for one below `least`, Unsupported for one too large.

    Args:
        default: each of the numbers if the node leaves the attribute out.
    """
    values = reader.attribute(node, name)
    if values is None:
        return [default] * count
    if len(values) != count or not all(isinstance(value, int) for value in values):
        raise ValueError(f"{name} {values}, expected {count} numbers")
    if values and min(values) < least:
        raise ValueError(f"{name} {values}, expected {least} at least")
    if values and max(values) > MOST_PLACES:
        raise Unsupported(f"{name} {values}: expected {MOST_PLACES} at most")
    return values


def window(
    reader: Reader, node: NodeProto, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list, list, list, list]:
    """Returns strides, dilations, and the padding at the beginning and at the end, by spatial axis, of a convolution or
    pooling. Raises ValueError and Unsupported as places() does.

    Args:
        sizes: of the spatial axes of the input.
    """
    axes = len(kernel)
    strides = places(reader, node, "strides", axes, 1)
    dilations = places(reader, node, "dilations", axes, 1)
    pads = places(reader, node, "pads", 2 * axes, 0, least=-MOST_PLACES)
    begins, ends = pads[:axes], pads[axes:]
    auto = reader.attribute(node, "auto_pad", "NOTSET")
    if auto == "VALID":
        begins, ends = [0] * axes, [0] * axes
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [
            (-(-size // stride) - 1) * stride + step * (side - 1) + 1 - size
            for size, stride, step, side in zip(sizes, strides, dilations, kernel, strict=True)
        ]
        if min(wanted) < _CUT:
            reader.notes.append(
                f"{reader.place()}: {auto} pads nothing where strides {strides} end within the input, as ONNX's own "
                "evaluator and TensorFlow have it; ONNX Runtime cuts places off its beginning"
            )
        total = [max(0, each) for each in wanted]
        less, more = [each // 2 for each in total], [each - each // 2 for each in total]
        begins, ends = (less, more) if auto == "SAME_UPPER" else (more, less)
    if min([*begins, *ends]) < 0:
        raise Unsupported(f"pads below zero, {pads}")
    if max([*begins, *ends]) > MOST_PLACES:
        raise Unsupported(f"pads of {max([*begins, *ends])}: expected {MOST_PLACES} at most")
    return strides, dilations, begins, ends


@imports("Conv")
def _conv(reader: Reader, node: NodeProto, x: Value, weights: Value, bias: Value | None = None) -> Value:
    weights = constant(weights, "weights")
    strides, dilations, begins, ends = window(reader, node, x.shape[2:], weights.shape[2:])
    biases = None if bias is None else constant(bias, "biases")
    group = reader.attribute(node, "group", 1)
    return convolution(reader, "Convolution", x, weights, biases, strides, dilations, begins, ends, group)


@imports("ConvTranspose")
def _conv_transpose(reader: Reader, node: NodeProto, x: Value, weights: Value, bias: Value | None = None) -> Value:
    """Makes a Deconvolution.

    Weights and padding are as in Caffe those of the convolution that is reversed. `output_padding` adds places at the
    end, as zeros at the end of the kernel do. Where the padding differs at the two ends, the layer has the smaller one,
    and the rest is cut off its top.
    """
    weights = constant(weights, "weights")
    axes, group = weights.ndim - 2, reader.attribute(node, "group", 1)
    if reader.attribute(node, "output_shape") or reader.attribute(node, "auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    ):
        raise Unsupported("output_shape, or auto_pad that follows from it")
    strides, dilations, begins, ends = window(reader, node, x.shape[2:], weights.shape[2:])
    more = places(reader, node, "output_padding", axes, 0, least=0)
    if any(added % step for added, step in zip(more, dilations, strict=True)):
        raise Unsupported(f"output_padding {more} with dilations {dilations}")
    added = [(0, each // step) for each, step in zip(more, dilations, strict=True)]
    weights = surrounded(reader.budget, weights, [(0, 0), (0, 0), *added])
    pads = [min(begin, end) for begin, end in zip(begins, ends, strict=True)]
    arrays = [weights] if bias is None else [weights, constant(bias, "biases")]
    param = {
        "num_output": weights.shape[1] * group,
        "kernel_size": shortest(weights.shape[2:]),
        "pad": shortest(pads),
        "stride": shortest(strides),
        "dilation": shortest(dilations),
        "group": group,
        "bias_term": bias is not None,
    }
    top = reader.layer("Deconvolution", [x], arrays, convolution_param=without_defaults(param))
    for axis, (begin, end, pad) in enumerate(zip(begins, ends, pads, strict=True), start=2):
        top = reader.slice(top, axis, begin - pad, top.shape[axis] - (end - pad))
    return top


@imports("Gemm")
def _gemm(reader: Reader, node: NodeProto, x: Value, weights: Value, bias: Value | None = None) -> Value:
    weights = constant(weights, "weights") * np.float32(reader.attribute(node, "alpha", 1.0))
    if reader.attribute(node, "transA", 0):
        raise Unsupported("transA")
    weights = weights if reader.attribute(node, "transB", 0) else weights.T
    if bias is None:
        return inner_product(reader, x, weights, None)
    biases = constant(bias, "biases") * np.float32(reader.attribute(node, "beta", 1.0))
    if biases.ndim == 2 and len(biases) > 1:
        raise Unsupported("biases for each row")
    return inner_product(reader, x, weights, np.broadcast_to(biases, (1, len(weights)))[0])


@imports("MatMul")
def _matmul(reader: Reader, node: NodeProto, x: Value, weights: Value) -> Value:
    weights = constant(weights, "matrices on the right")
    if weights.ndim != 2:
        raise Unsupported(f"a matrix of {weights.ndim} axes")
    return inner_product(reader, x, weights.T, None)


def inner_product(reader: Reader, x: Value, weights: np.ndarray, bias: np.ndarray | None) -> Blob:
    """Adds an InnerProduct over the last axis; weights: (outputs, inputs)."""
    param: dict[str, Any] = {"num_output": len(weights)}
    if bias is None:
        param["bias_term"] = False
    blob = reader.blob(x)
    if len(blob.shape) != 2:
        param["axis"] = len(blob.shape) - 1
    return reader.layer("InnerProduct", [blob], [weights] if bias is None else [weights, bias],
                        inner_product_param=param)  # fmt: skip


@imports("Gather")
def _gather(reader: Reader, node: NodeProto, data: Value, rows: Value) -> Value:
    """Makes an Embed for rows of a constant, a BatchReindex for samples whose numbers are in another blob, and a Slice
    for constant places of a blob, which have to follow each other."""
    if isinstance(data, np.ndarray):
        if data.ndim != 2 or reader.attribute(node, "axis", 0) != 0:
            raise Unsupported(f"rows of a table of {data.ndim} axes")
        count, width = data.shape
        param = {"num_output": width, "input_dim": count, "bias_term": False}
        return reader.layer("Embed", [rows], [data], embed_param=param)
    blob = reader.blob(data)
    axis = axis_of(reader.attribute(node, "axis", 0), len(blob.shape))
    size = blob.shape[axis]
    if isinstance(rows, Blob) and axis == 0 and len(rows.shape) == 1:
        return reader.layer("BatchReindex", [blob, rows])
    wanted = constant(rows, "places")
    if wanted.size and not -size <= int(wanted.min()) <= int(wanted.max()) < size:
        raise ValueError(f"a place outside of an axis of {size}")
    first = int(wanted.ravel()[0]) % size
    if not np.array_equal(wanted.ravel() % size, np.arange(first, first + wanted.size)):
        raise Unsupported("places that are not in a row")
    found = reader.slice(blob, axis, first, first + wanted.size)
    return reader.reshape(found, (*blob.shape[:axis], *wanted.shape, *blob.shape[axis + 1 :]))


@imports("BatchNormalization")
def _batch_normalization(reader: Reader, node: NodeProto, x: Value, *coefficients: Value) -> Value:
    if reader.attribute(node, "training_mode", 0):
        raise Unsupported("training_mode")
    scale, shift, mean, variance = (constant(each, "coefficients") for each in coefficients)
    eps = reader.attribute(node, "epsilon", 1e-5)
    y = reader.layer("BatchNorm", [x], [mean, variance, np.ones(1)], batch_norm_param={"eps": eps})
    return reader.layer("Scale", [y], [scale, shift], scale_param={"bias_term": True}, in_place=True)


@imports("InstanceNormalization")
def _instance_normalization(reader: Reader, node: NodeProto, x: Value, scale: Value, shift: Value) -> Value:
    """Makes a BatchNorm by the batch's own statistics, to which each channel of each sample looks like a channel."""
    blob = reader.blob(x)
    return _normalised(reader, node, blob, (1, blob.shape[0] * blob.shape[1], *blob.shape[2:]), 1, scale, shift)


@imports("LayerNormalization")
def _layer_normalization(reader: Reader, node: NodeProto, x: Value, scale: Value, shift: Value | None = None) -> Value:
    blob = reader.blob(x)
    axis = axis_of(reader.attribute(node, "axis", -1), len(blob.shape))
    outer, inner = math.prod(blob.shape[:axis]), math.prod(blob.shape[axis:])
    return _normalised(reader, node, blob, (1, outer, inner), axis, scale, shift)


def _normalised(
    reader: Reader, node: NodeProto, blob: Blob, rows: Sequence[int], axis: int, scale: Value, shift: Value | None
) -> Value:
    """Adds layers that normalise each row of a blob by itself, scale and shift it.

    Args:
        rows: (1, count, ...), the shape in which a BatchNorm takes each row for a channel. The Reshape is there even if
            the blob has that shape: if the net is given a larger batch, the BatchNorm would else mix samples.
        axis: of the blob, the first that `scale` and `shift` have.
        scale, shift: constants.
    """
    count = rows[1]
    reader.budget.take(count)
    statistics = [np.zeros(count), np.ones(count), np.ones(1)]
    eps = reader.attribute(node, "epsilon", 1e-5)
    apart = reader.layer("Reshape", [blob], reshape_param={"shape": {"dim": rows}})
    y = reader.layer("BatchNorm", [apart], statistics, batch_norm_param={"eps": eps, "use_global_stats": False})
    y = reader.reshape(y, blob.shape)
    arrays = [constant(scale, "scales")] + ([] if shift is None else [constant(shift, "shifts")])
    param: dict[str, Any] = {"axis": axis, "num_axes": arrays[0].ndim, "bias_term": len(arrays) == 2}
    return reader.layer("Scale", [y], arrays, scale_param=param)


@imports("LRN")
def _lrn(reader: Reader, node: NodeProto, x: Value) -> Value:
    param = {
        "local_size": reader.attribute(node, "size"),
        "alpha": reader.attribute(node, "alpha", 1e-4),
        "beta": reader.attribute(node, "beta", 0.75),
        "k": reader.attribute(node, "bias", 1.0),
    }
    return reader.layer("LRN", [x], lrn_param=param)


@imports("MaxRoiPool")
def _max_roi_pool(reader: Reader, node: NodeProto, x: Value, regions: Value) -> Value:
    height, width = reader.attribute(node, "pooled_shape")
    param = {"pooled_h": height, "pooled_w": width, "spatial_scale": reader.attribute(node, "spatial_scale", 1.0)}
    return reader.layer("ROIPooling", [x, regions], roi_pooling_param=param)
