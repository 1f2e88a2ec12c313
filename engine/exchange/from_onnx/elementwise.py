"""Functions of each element; sums, differences, products and quotients of blobs and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.exchange.from_onnx.registry import Unsupported, Value, axis_of, imports
from engine.exchange.from_onnx.weighted import constant
from engine.exchange.onnx_file import WHOLE_TYPES
from engine.layers.base import Blob, Shape

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader

# Operators that one layer computes: its type and fields.
_PLAIN = {
    "Relu": ("ReLU", {}),
    "Sigmoid": ("Sigmoid", {}),
    "Tanh": ("TanH", {}),
    "Abs": ("AbsVal", {}),
    "Softplus": ("BNLL", {}),
    "Exp": ("Exp", {}),
    "Log": ("Log", {}),
    "Neg": ("Power", {"power_param": {"scale": -1}}),
    "Sqrt": ("Power", {"power_param": {"power": 0.5}}),
    "Reciprocal": ("Power", {"power_param": {"power": -1}}),
}
_LARGEST = float(np.finfo(np.float32).max)
_WITH_AXIS = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Xor".split())  # have an `axis` before opset 7


def along_axis(reader: Reader, node: NodeProto, given: Sequence[Value | None]) -> Sequence[Value | None]:
    """Returns the inputs of a node, with axes of 1 added to the second so that NumPy broadcasts it as the node does.

    Before opset 7, `axis` says with which axis of the first input the axes of the second begin. Raises ValueError if
    they do not fit there.
    """
    axis = reader.attribute(node, "axis") if reader.opset < 7 and node.op_type in _WITH_AXIS else None
    if axis is None or node.domain not in ("", "ai.onnx"):
        return given
    a, b = given
    if a is None or b is None or math.prod(b.shape) == 1:
        return given
    begin = axis_of(axis, len(a.shape))
    end = begin + len(b.shape)
    if tuple(a.shape[begin:end]) != tuple(b.shape):
        raise ValueError(f"{tuple(b.shape)} along {tuple(a.shape)}, from axis {begin} on")
    shape = (*b.shape, *[1] * (len(a.shape) - end))
    return [a, b.reshape(shape) if isinstance(b, np.ndarray) else reader.reshape(b, shape)]


@imports(*_PLAIN)
def _plain(reader: Reader, node: NodeProto, x: Value) -> Value:
    type, fields = _PLAIN[node.op_type]
    return reader.layer(type, [x], **fields)


@imports("Identity", "Dropout")
def _nothing(reader: Reader, node: NodeProto, x: Value, *others: Value) -> Value:
    """Returns the input: a Dropout changes nothing in testing."""
    return x


@imports("Cast")
def _cast(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Returns the input: all blobs are of floats, also those of whole numbers. A note tells if fractions would be cut
    off."""
    to = reader.attribute(node, "to")
    if to == 9:  # BOOL
        raise Unsupported("a cast to truth values")
    if to in WHOLE_TYPES and not reader.is_whole(x):
        reader.notes.append(f"{reader.place()}: no layer cuts off fractions; expected whole numbers of its input")
    return x


@imports("LeakyRelu")
def _leaky_relu(reader: Reader, node: NodeProto, x: Value) -> Value:
    return reader.layer("ReLU", [x], relu_param={"negative_slope": reader.attribute(node, "alpha", 0.01)})


@imports("Elu")
def _elu(reader: Reader, node: NodeProto, x: Value) -> Value:
    return reader.layer("ELU", [x], elu_param={"alpha": reader.attribute(node, "alpha", 1.0)})


@imports("Selu")
def _selu(reader: Reader, node: NodeProto, x: Value) -> Value:
    alpha = reader.attribute(node, "alpha", 1.67326319217681884765625)
    y = reader.layer("ELU", [x], elu_param={"alpha": alpha})
    return _power(reader, y, scale=reader.attribute(node, "gamma", 1.05070102214813232421875))


@imports("PRelu")
def _prelu(reader: Reader, node: NodeProto, x: Value, slope: Value) -> Value:
    values = constant(slope, "slopes")
    if values.size == 1:
        return reader.layer("PReLU", [x], [values.reshape(())], prelu_param={"channel_shared": True})
    if _aligned(values, x.shape) != (1, 1):
        raise Unsupported(f"slopes of shape {values.shape}")
    return reader.layer("PReLU", [x], [values.ravel()])


@imports("Clip")
def _clip(reader: Reader, node: NodeProto, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    least = reader.attribute(node, "min", -_LARGEST) if low is None else float(constant(low, "limits").ravel()[0])
    most = reader.attribute(node, "max", _LARGEST) if high is None else float(constant(high, "limits").ravel()[0])
    if least == 0 and most == 6:
        return reader.layer("ReLU6", [x])
    if least == 0 and most >= _LARGEST:
        return reader.layer("ReLU", [x])
    return reader.layer("Clip", [x], clip_param={"min": max(least, -_LARGEST), "max": min(most, _LARGEST)})


@imports("HardSigmoid")
def _hard_sigmoid(reader: Reader, node: NodeProto, x: Value) -> Value:
    alpha, beta = reader.attribute(node, "alpha", 0.2), reader.attribute(node, "beta", 0.5)
    return reader.layer("Clip", [_power(reader, x, scale=alpha, shift=beta)], clip_param={"min": 0, "max": 1})


@imports("HardSwish")
def _hard_swish(reader: Reader, node: NodeProto, x: Value) -> Value:
    """Computes x max(0, min(1, x / 6 + 1/2))."""
    gate = reader.layer("Clip", [_power(reader, x, scale=1 / 6, shift=0.5)], clip_param={"min": 0, "max": 1})
    return reader.layer("Eltwise", [x, gate], eltwise_param={"operation": "PROD"})


@imports("Pow")
def _pow(reader: Reader, node: NodeProto, x: Value, exponent: Value) -> Value:
    values = constant(exponent, "exponents")
    if values.size != 1:
        raise Unsupported("an exponent for each element")
    return reader.layer("Power", [x], power_param={"power": float(values.ravel()[0])})


@imports("Greater")
def _greater(reader: Reader, node: NodeProto, x: Value, limit: Value) -> Value:
    values = constant(limit, "thresholds")
    if values.size != 1:
        raise Unsupported("a threshold for each element")
    return reader.layer("Threshold", [x], threshold_param={"threshold": float(values.ravel()[0])})


def _power(reader: Reader, x: Value, **fields: float) -> Blob:
    return reader.layer("Power", [x], power_param=fields)


@imports("Add", "Sum")
def _add(reader: Reader, node: NodeProto, first: Value, *others: Value) -> Value:
    if all(isinstance(each, Blob) and each.shape == first.shape for each in (first, *others)) and others:
        return reader.layer("Eltwise", [first, *others])
    for each in others:
        first = _sum(reader, first, each)
    return first


@imports("Sub")
def _sub(reader: Reader, node: NodeProto, a: Value, b: Value) -> Value:
    if isinstance(b, np.ndarray):
        return _sum(reader, a, -b)
    if a.shape == b.shape and isinstance(a, Blob):
        return reader.layer("Eltwise", [a, b], eltwise_param={"coeff": [1, -1]})
    return _sum(reader, a, _power(reader, b, scale=-1))


@imports("Mul")
def _mul(reader: Reader, node: NodeProto, a: Value, b: Value) -> Value:
    return _product(reader, a, b)


@imports("Div")
def _div(reader: Reader, node: NodeProto, a: Value, b: Value) -> Value:
    if isinstance(b, np.ndarray):
        return _product(reader, a, 1 / b.astype(np.float64))
    return _product(reader, a, _power(reader, b, power=-1))


@imports("Max", "Min")
def _extreme(reader: Reader, node: NodeProto, first: Value, *others: Value) -> Value:
    """Makes a Clip for a constant, else an Eltwise MAX: the least number is the negative of the largest negative."""
    sign = 1 if node.op_type == "Max" else -1
    for each in others:
        limit = each if isinstance(each, np.ndarray) else first if isinstance(first, np.ndarray) else None
        if limit is not None:
            if limit.size != 1:
                raise Unsupported("a limit for each element")
            x = first if limit is each else each
            value = min(max(float(limit.ravel()[0]), -_LARGEST), _LARGEST)
            bounds = {"min": value, "max": _LARGEST} if sign > 0 else {"min": -_LARGEST, "max": value}
            first = reader.layer("Clip", [x], clip_param=bounds)
            continue
        a, b = _same_shape(reader, reader.blob(first), reader.blob(each))
        if sign < 0:
            a, b = (_power(reader, x, scale=-1) for x in (a, b))
        first = reader.layer("Eltwise", [a, b], eltwise_param={"operation": "MAX"})
        if sign < 0:
            first = _power(reader, first, scale=-1)
    return first


def _sum(reader: Reader, a: Value, b: Value) -> Blob:
    """Adds two values: as the bias of the layer before, or by a Power, Bias or Eltwise, whichever is the simplest."""
    a, b = (b, a) if isinstance(a, np.ndarray) else (a, b)
    if isinstance(b, np.ndarray):
        if b.size == 1 and b.ndim <= len(a.shape):
            return _power(reader, a, shift=float(b.ravel()[0]))
        joined = _as_bias(reader, a, b)
        if joined is not None:
            return joined
        aligned = _aligned(b, a.shape)
        if aligned is not None:
            axis, count = aligned
            return reader.layer(
                "Bias", [a], [_core(b, a.shape, axis, count)], bias_param={"axis": axis, "num_axes": count}
            )
    a, b = _larger_first(reader.blob(a), reader.blob(b))
    covered = _leading(b.shape, a.shape)
    if covered is not None and b.shape != a.shape:
        return reader.layer("Bias", [a, reader.reshape(b, a.shape[:covered])], bias_param={"axis": 0})
    return reader.layer("Eltwise", list(_same_shape(reader, a, b)))


def _product(reader: Reader, a: Value, b: Value) -> Blob:
    """Multiplies two values by a Power, Scale or Eltwise, whichever is the simplest."""
    a, b = (b, a) if isinstance(a, np.ndarray) else (a, b)
    if isinstance(b, np.ndarray):
        if b.size == 1 and b.ndim <= len(a.shape):
            return _power(reader, a, scale=float(b.ravel()[0]))
        aligned = _aligned(b, a.shape)
        if aligned is not None:
            axis, count = aligned
            param = {"axis": axis, "num_axes": count}
            return reader.layer("Scale", [a], [_core(b, a.shape, axis, count)], scale_param=param)
    a, b = _larger_first(reader.blob(a), reader.blob(b))
    covered = _leading(b.shape, a.shape)
    if covered is not None and b.shape != a.shape:
        return reader.layer("Scale", [a, reader.reshape(b, a.shape[:covered])], scale_param={"axis": 0})
    param = {"operation": "PROD"}
    return reader.layer("Eltwise", list(_same_shape(reader, a, b)), eltwise_param=param)


def _as_bias(reader: Reader, x: Value, values: np.ndarray) -> Blob | None:
    """Makes a constant that is added to x the bias of the layer before; returns x.

    Returns None, and changes nothing, unless the last layer is an InnerProduct or Convolution without bias that makes
    x, only this node reads x, and the constant has a value for each output.
    """
    layers = reader.maker.message.layer
    if not isinstance(x, Blob) or not layers or x.name not in layers[-1].top or not reader.reads_alone(x):
        return None
    layer = layers[-1]
    param = {"InnerProduct": layer.inner_product_param, "Convolution": layer.convolution_param}.get(layer.type)
    channel = len(x.shape) - 1 if layer.type == "InnerProduct" else 1
    if param is None or param.bias_term or _aligned(values, x.shape) != (channel, 1):
        return None
    param.bias_term = True
    reader.maker.weights[layer.name].append(np.ascontiguousarray(values.ravel(), np.float32))
    return x


def _aligned(values: np.ndarray, shape: Shape) -> tuple[int, int] | None:
    """Returns the first of the axes of a blob that a constant varies along, and how many they are: the `axis` and
    `num_axes` of a Scale or Bias.

    Returns None if the constant has a single value, does not have the blob's sizes on these axes, or has more axes.
    """
    if values.ndim > len(shape):
        return None
    dims = (1,) * (len(shape) - values.ndim) + values.shape
    along = [axis for axis, dim in enumerate(dims) if dim != 1]
    if not along:
        return None
    first, last = along[0], along[-1]
    if dims[first : last + 1] != tuple(shape[first : last + 1]):
        return None
    return first, last - first + 1


def _core(values: np.ndarray, shape: Shape, axis: int, count: int) -> np.ndarray:
    """Returns a constant without its axes of 1 before and behind those that _aligned() has found."""
    return values.reshape(shape[axis : axis + count])


def _leading(small: Shape, large: Shape) -> int | None:
    """Returns how many leading axes both shapes share if all further ones of `small` are 1; else None."""
    if len(small) != len(large):
        return None
    covered = len(small)
    while covered and small[covered - 1] == 1:
        covered -= 1
    return covered if covered and small[:covered] == large[:covered] else None


def _larger_first(a: Blob, b: Blob) -> tuple[Blob, Blob]:
    return (a, b) if len(a.shape) >= len(b.shape) and np.prod(a.shape) >= np.prod(b.shape) else (b, a)


def _same_shape(reader: Reader, a: Blob, b: Blob) -> tuple[Blob, Blob]:
    """Returns both blobs in the shape that they broadcast to, repeated by Tile where that is necessary."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    return expanded(reader, a, shape), expanded(reader, b, shape)


def expanded(reader: Reader, blob: Blob, shape: Shape) -> Blob:
    """Returns a blob repeated along its axes of 1, so that it has the given shape."""
    blob = reader.reshape(blob, (1,) * (len(shape) - len(blob.shape)) + blob.shape)
    for axis, size in enumerate(shape):
        if blob.shape[axis] != size:
            blob = reader.layer("Tile", [blob], tile_param={"axis": axis, "tiles": size // blob.shape[axis]})
    return blob
