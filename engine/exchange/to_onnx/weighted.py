"""Layers with weights: convolutions, inner products, embeddings, Scale, Bias, Parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.to_onnx.registry import Inexpressible, exports

if TYPE_CHECKING:
    from engine.exchange.onnx_writer import Writer
    from engine.layers.affine import Affine
    from engine.layers.convolution import Convolution
    from engine.layers.embed import Embed
    from engine.layers.inner_product import InnerProduct


def _window(layer: Convolution) -> dict[str, list[int]]:
    """Returns the attributes of Conv and ConvTranspose that describe the window."""
    window = layer.window
    pads = [*window["pad"], *window["pad"]]
    return {
        "kernel_shape": window["kernel"],
        "strides": window["stride"],
        "pads": pads,
        "dilations": window["dilation"],
    }


def _intels_relu(out: Writer, layer: Convolution | InnerProduct, value: str) -> str:
    """Writes the ReLU of `relu: true`, which Intel's Caffe allows in layers with weights; nothing without it."""
    if not layer.param.relu:
        return value
    return relu(out, value, layer.param.negative_slope)


def relu(out: Writer, x: str, slope: float) -> str:
    return out.op("LeakyRelu", x, alpha=slope) if slope else out.op("Relu", x)


@exports("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "ConvolutionDepthWise")
def _convolution(out: Writer, layer: Convolution, *bottoms: str) -> list[str]:
    return _of_each(out, layer, "Conv", bottoms)


@exports("Deconvolution")
def _deconvolution(out: Writer, layer: Convolution, *bottoms: str) -> list[str]:
    return _of_each(out, layer, "ConvTranspose", bottoms)


def _of_each(out: Writer, layer: Convolution, op: str, bottoms: tuple[str, ...]) -> list[str]:
    """Writes a node with the same weights for each bottom; returns their values, which are the tops."""
    if layer.axis != 1 or len(layer.shapes[0]) < 3:
        raise Inexpressible(f"channels that are axis {layer.axis} of {len(layer.shapes[0])}")
    params = out.params(layer)
    attributes = {"group": layer.param.group, **_window(layer)}
    return [_intels_relu(out, layer, out.op(op, x, *params, **attributes)) for x in bottoms]


@exports("Im2col")
def _im2col(out: Writer, layer: Convolution, x: str) -> str:
    """Writes an Im2col as a depthwise convolution: for each place of the window with a kernel whose only 1 is there."""
    if layer.axis != 1 or len(layer.shapes[0]) < 3:
        raise Inexpressible(f"channels that are axis {layer.axis} of {len(layer.shapes[0])}")
    channels, kernel = layer.shapes[0][1], layer.window["kernel"]
    ones = np.eye(math.prod(kernel), dtype=np.float32).reshape(-1, 1, *kernel)
    return out.op("Conv", x, np.tile(ones, (channels, *[1] * (len(kernel) + 1))), group=channels, **_window(layer))


@exports("InnerProduct")
def _inner_product(out: Writer, layer: InnerProduct, x: str) -> str:
    """Writes a Gemm, which takes matrices, or for `axis` other than 1 a MatMul, which takes more axes."""
    weights, *bias = out.params(layer)
    if layer.param.normalize:
        (values, *_) = out.arrays(layer)
        lengths = np.sqrt(np.square(values.astype(np.float64)).sum(axis=1, keepdims=True))
        weights = (values / lengths).astype(np.float32)
    axis, transpose = layer.axis, layer.param.transpose
    if axis == 1:
        x = x if len(layer.shapes[0]) == 2 else out.op("Flatten", x, axis=1)
        y = out.op("Gemm", x, weights, *bias, transB=int(not transpose))
        return _intels_relu(out, layer, y)
    if axis != len(layer.shapes[0]) - 1:
        x = out.reshape(x, [*out.dims(layer.bottoms[0])[:axis], math.prod(layer.shapes[0][axis:])])
    y = out.op("MatMul", x, weights if transpose else out.op("Transpose", weights, perm=[1, 0]))
    return _intels_relu(out, layer, out.op("Add", y, bias[0]) if bias else y)


@exports("Embed")
def _embed(out: Writer, layer: Embed, rows: str) -> str:
    weights, *bias = out.params(layer)
    y = out.op("Gather", weights, out.op("Cast", rows, to=7), axis=0)  # 7: INT64
    return out.op("Add", y, bias[0]) if bias else y


def _over_axes(out: Writer, layer: Affine, given: list[str]) -> list[str]:
    """Returns the coefficients of a Scale or Bias with axes of 1 added at the end, so that ONNX broadcasts them over
    the bottom's axes from layer.axis on.

    Args:
        given: the values of the coefficients: the second bottom, if there is one, and the layer's parameters.
    """
    behind = len(layer.shapes[0]) - layer.axis - len(layer.coefficient_shape)
    if not behind or not layer.coefficient_shape:
        return given
    if len(layer.bottoms) == 2:  # the first of those given is this bottom, the others are parameters
        axes = list(range(len(layer.coefficient_shape), len(layer.coefficient_shape) + behind))
        given = [out.op("Unsqueeze", given[0], axes), *given[1:]]
        return given[:1] + [out.constant(each.reshape(*each.shape, *[1] * behind)) for each in out.arrays(layer)]
    return [out.constant(each.reshape(*each.shape, *[1] * behind)) for each in out.arrays(layer)]


@exports("Scale")
def _scale(out: Writer, layer: Affine, x: str, *factor: str) -> str:
    scale, *shift = _over_axes(out, layer, [*factor, *out.params(layer)])
    y = out.op("Mul", x, scale)
    return out.op("Add", y, shift[0]) if shift else y


@exports("Bias")
def _bias(out: Writer, layer: Affine, x: str, *shift: str) -> str:
    return out.op("Add", x, _over_axes(out, layer, [*shift, *out.params(layer)])[0])


@exports("Parameter")
def _parameter(out: Writer, layer: Affine) -> str:
    return out.params(layer)[0]
