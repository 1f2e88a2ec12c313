"""Computes constants from constants by ONNX's evaluator, after a look at how large they become.

Each operator has a function that tells this size, so that a small file cannot ask for more memory or time than the
model's Budget has. Operators without such a function are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from engine.exchange.from_onnx.registry import Unsupported, Value, axes_of, axis_of
from engine.exchange.onnx_file import evaluate
from engine.files import reason

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto
    from engine.exchange.onnx_import import Reader

_LEAST = 1000  # a node counts as at least so many values: even a small one takes time
_SLOW = 32  # a value counts as so many where ONNX's evaluator loops over them in Python
_WITHOUT_BLAS = 16  # a multiply-add counts as so many in a type that no BLAS multiplies
_TEXT = 8  # TensorProto.STRING
_SOFTMAX_AXIS = 1  # the default before opset 13

# (reader, node, the constants that it reads) -> an upper bound of the values that it makes or goes through.
Size: TypeAlias = "Callable[[Reader, NodeProto, Sequence[np.ndarray]], int]"


def folded(reader: Reader, node: NodeProto, given: Sequence[Value | None]) -> list[np.ndarray] | None:
    """Returns the outputs of a node that reads only constants, as arrays.

    Returns None if the node reads a blob or nothing, or has an operator that is not computed here. Raises Unsupported
    if there would be too many values, or if the operator does not take these constants.
    """
    size = _SIZES.get(node.op_type)
    constants = [value for value in given if isinstance(value, np.ndarray)]
    if size is None or not constants or len(constants) != sum(value is not None for value in given):
        return None
    try:
        count = size(reader, node, constants)
        reader.budget.take(max(count, _LEAST), sum(value.size for value in constants))
        if node.op_type == "ConstantOfShape":
            return [_filled(reader, node, constants[0])]
        _check_attributes(node)
        feeds = {name: value for name, value in zip(node.input, given, strict=True) if isinstance(value, np.ndarray)}
        node = _with_axis(reader, node)
        return evaluate(node, feeds, max(reader.opset, _SINCE.get(node.op_type, 0)))
    except Unsupported:
        raise
    except Exception as error:  # NumPy and the evaluator may raise anything for a wrong model
        raise Unsupported(f"of constants, {reason(error)}") from None


def _check_attributes(node: NodeProto) -> None:
    """Raises Unsupported if an attribute is a tensor or a graph: ONNX's evaluator would read their external data from
    any file."""
    for each in node.attribute:
        tensors = each.HasField("t") or each.tensors or each.HasField("sparse_tensor") or each.sparse_tensors
        if tensors or each.HasField("g") or each.graphs:
            raise Unsupported(f"of constants, with '{each.name}'")


def _with_axis(reader: Reader, node: NodeProto) -> NodeProto:
    """Returns a node with its axis written out if it is a softmax before opset 13 that leaves it to the default.

    ONNX's evaluator would take the last axis in every opset.
    """
    if reader.opset >= 13 or _SIZES[node.op_type] is not _softmax or reader.attribute(node, "axis") is not None:
        return node
    result = type(node)()
    result.CopyFrom(node)
    result.attribute.append(reader.onnx.helper.make_attribute("axis", _SOFTMAX_AXIS))
    return result


def _filled(reader: Reader, node: NodeProto, shape: np.ndarray) -> np.ndarray:
    """Returns the output of a ConstantOfShape. evaluate() cannot be asked for it, since its attribute is a tensor."""
    value = next((reader.tensors.array(each.t) for each in node.attribute if each.name == "value"), np.zeros(1, "f"))
    return np.full([int(dim) for dim in shape], value.reshape(1)[0], value.dtype)


# Sizes: functions of the type Size, by operator or by group of operators. They may also raise Unsupported, and other
# exceptions for constants that do not fit the operator.


def _as_first(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return given[0].size


def _broadcast(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(np.broadcast_shapes(*(value.shape for value in given)))


def _all(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return sum(value.size for value in given)


def _looped(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Returns the size for operators that ONNX's evaluator computes value by value in Python."""
    return _SLOW * _all(reader, node, given)


def _cast(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    if reader.attribute(node, "to") == _TEXT:
        raise Unsupported("a cast to texts")
    return given[0].size


def _squeeze(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Returns the size of a Squeeze or Unsqueeze. Raises ValueError for wrong axes."""
    axes = reader.attribute(node, "axes") if len(given) < 2 else given[1].ravel()
    if axes is not None:
        axes_of(axes, given[0].ndim + (len(axes) if node.op_type == "Unsqueeze" else 0))
    return given[0].size


def _split(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    count = reader.attribute(node, "num_outputs", len(node.output))
    if count != len(node.output):
        raise ValueError(f"{count} parts for {len(node.output)} outputs")
    return given[0].size


def _gather(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    data, places = given
    axis = axis_of(reader.attribute(node, "axis", 0), data.ndim)
    return places.size * math.prod(size for i, size in enumerate(data.shape) if i != axis)


def _gather_nd(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    data, places = given
    along = places.shape[-1] + reader.attribute(node, "batch_dims", 0)
    return _SLOW * places.size + math.prod(places.shape[:-1]) * math.prod(data.shape[along:])


def _range(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    start, limit, delta = (value.reshape(()).item() for value in given)
    return max(0, math.ceil((limit - start) / delta))


def _constant_of_shape(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(abs(int(dim)) for dim in given[0])


def _expand(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(np.broadcast_shapes(given[0].shape, tuple(int(dim) for dim in given[1])))


def _tile(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return given[0].size * math.prod(abs(int(count)) for count in given[1].ravel())


def _pad(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    if reader.attribute(node, "mode", "constant") != "constant":
        raise Unsupported(f"mode {reader.attribute(node, 'mode')}")
    pads = reader.attribute(node, "pads") if len(given) < 2 else given[1].ravel()
    return math.prod(size + sum(abs(int(pad)) for pad in pads) for size in given[0].shape)


def _one_hot(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return given[0].size * abs(int(given[1].reshape(1)[0]))


def _matmul(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Returns the size of a MatMul, for which a vector is a row on the left and a column on the right."""
    a, b = given[:2]
    a, b = a.reshape(1, -1) if a.ndim == 1 else a, b.reshape(-1, 1) if b.ndim == 1 else b
    count = math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * b.shape[-1]
    _take_multiply_adds(reader, count * a.shape[-1], a, b)
    return count


def _gemm(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    a, b, *more = given
    rows, inner = a.shape[::-1] if reader.attribute(node, "transA", 0) else a.shape
    _, columns = b.shape[::-1] if reader.attribute(node, "transB", 0) else b.shape
    _take_multiply_adds(reader, rows * inner * columns, a, b)
    return math.prod(np.broadcast_shapes((rows, columns), *(each.shape for each in more)))


def _take_multiply_adds(reader: Reader, count: int, a: np.ndarray, b: np.ndarray) -> None:
    """Takes the `count` multiply-adds of a product from the budget. Raises Unsupported if too few are left."""
    reader.budget.multiply(count * (1 if np.result_type(a, b).char in "fd" else _WITHOUT_BLAS))


def _softmax(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Returns the size of a softmax. Raises Unsupported for one along several axes: before opset 13 a softmax is along
    all axes from `axis` on together, which ONNX's evaluator cannot do."""
    if reader.opset < 13:
        axis = axis_of(reader.attribute(node, "axis", _SOFTMAX_AXIS), given[0].ndim)
        if math.prod(given[0].shape[axis + 1 :]) != 1:
            raise Unsupported("along several axes together")
    return given[0].size


def _dequantize_linear(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Returns the size of a DequantizeLinear. There is one scale, or one for each place of an axis, or one for each
    block of places, which the evaluator repeats. Raises ValueError for another number of scales or zero points."""
    values, several = given[0], [each for each in given[1:] if each.size > 1]  # scales and zero points
    block = reader.attribute(node, "block_size", 0)
    if reader.attribute(node, "output_dtype") == _TEXT:
        raise Unsupported("a cast to texts")
    if several and not block:
        axis = axis_of(reader.attribute(node, "axis", 1), values.ndim)
        if any(each.shape != (values.shape[axis],) for each in several):
            raise ValueError(f"scales of another number than the {values.shape[axis]} places of axis {axis}")
    return max([values.size, *(each.size * abs(block) for each in several)])


_SINCE = {"DequantizeLinear": 19}  # the first opset that ONNX's evaluator has of it; earlier ones compute the same
_SIZES: dict[str, Size] = {
    **dict.fromkeys(
        "Abs ArgMax ArgMin Ceil Cos CumSum Elu Exp EyeLike Flatten Floor HardSigmoid IsInf IsNaN LeakyRelu Log Neg Not "
        "Reciprocal Relu Reshape Round Sigmoid Sign Sin Slice Softplus Sqrt Tanh TopK Transpose Trilu ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum ReduceL2 ReduceSumSquare".split(),
        _as_first,
    ),
    **dict.fromkeys(
        "Add And Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where "
        "Xor".split(),
        _broadcast,
    ),
    **dict.fromkeys(["Erf", "GatherElements", "NonZero", "ScatterElements", "ScatterND"], _looped),
    **dict.fromkeys(["Cast", "CastLike"], _cast),
    **dict.fromkeys(["Softmax", "LogSoftmax"], _softmax),
    **dict.fromkeys(["Squeeze", "Unsqueeze"], _squeeze),
    "Concat": _all,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize_linear,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Split": _split,
    "Tile": _tile,
}
