"""Constants that are computed from constants: by which operators, and how large they become, which is known before."""

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

_LEAST = 1000  # values, as which a node counts at least: it takes its time
_SLOW = 32  # values, as which one counts where ONNX's evaluator goes from one to the next in Python
_WITHOUT_BLAS = 16  # multiply-adds, as which one counts of a type that no BLAS multiplies
_TEXT = 8  # TensorProto's number of the type
_AXIS_OF_SOFTMAX = 1  # before opset 13, where it is left out

# (reader, node, the constants that it reads) -> at most how many values it makes, or goes through on the way.
Size: TypeAlias = "Callable[[Reader, NodeProto, Sequence[np.ndarray]], int]"


def folded(reader: Reader, node: NodeProto, given: Sequence[Value | None]) -> list[np.ndarray] | None:
    """What a node makes of constants; None where it reads a blob, or its operator is none of these. Raises Unsupported
    where they would become too many values, or none that fit."""
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
    except Exception as error:  # whatever an operator of NumPy makes of a wrong model
        raise Unsupported(f"of constants, {reason(error)}") from None


def _check_attributes(node: NodeProto) -> None:
    """Raises Unsupported for tensors and graphs: ONNX's evaluator would read data that they keep in any file."""
    for each in node.attribute:
        tensors = each.HasField("t") or each.tensors or each.HasField("sparse_tensor") or each.sparse_tensors
        if tensors or each.HasField("g") or each.graphs:
            raise Unsupported(f"of constants, with '{each.name}'")


def _with_axis(reader: Reader, node: NodeProto) -> NodeProto:
    """Says the axis of a softmax of before opset 13: where a node leaves it out, ONNX's evaluator takes the last one,
    whichever the opset is."""
    if reader.opset >= 13 or _SIZES[node.op_type] is not _softmaxed or reader.attribute(node, "axis") is not None:
        return node
    result = type(node)()
    result.CopyFrom(node)
    result.attribute.append(reader.onnx.helper.make_attribute("axis", _AXIS_OF_SOFTMAX))
    return result


def _filled(reader: Reader, node: NodeProto, shape: np.ndarray) -> np.ndarray:
    """Of a ConstantOfShape."""
    value = next((reader.tensors.array(each.t) for each in node.attribute if each.name == "value"), np.zeros(1, "f"))
    return np.full([int(dim) for dim in shape], value.reshape(1)[0], value.dtype)


def _first(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """As many as the first has."""
    return given[0].size


def _broadcast(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(np.broadcast_shapes(*(value.shape for value in given)))


def _together(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return sum(value.size for value in given)


def _one_by_one(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return _SLOW * _together(reader, node, given)


def _cast(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    if reader.attribute(node, "to") == _TEXT:
        raise Unsupported("a cast to texts")
    return given[0].size


def _moved(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Squeeze and Unsqueeze, whose axes are checked."""
    axes = reader.attribute(node, "axes") if len(given) < 2 else given[1].ravel()
    if axes is not None:
        axes_of(axes, given[0].ndim + (len(axes) if node.op_type == "Unsqueeze" else 0))
    return given[0].size


def _split(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    count = reader.attribute(node, "num_outputs", len(node.output))
    if count != len(node.output):
        raise ValueError(f"{count} parts for {len(node.output)} outputs")
    return given[0].size


def _gathered(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    data, places = given
    axis = axis_of(reader.attribute(node, "axis", 0), data.ndim)
    return places.size * math.prod(size for i, size in enumerate(data.shape) if i != axis)


def _gathered_nd(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    data, places = given
    along = places.shape[-1] + reader.attribute(node, "batch_dims", 0)
    return _SLOW * places.size + math.prod(places.shape[:-1]) * math.prod(data.shape[along:])


def _range(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    start, limit, delta = (value.reshape(()).item() for value in given)
    return max(0, math.ceil((limit - start) / delta))


def _shaped(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(abs(int(dim)) for dim in given[0])


def _expanded(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return math.prod(np.broadcast_shapes(given[0].shape, tuple(int(dim) for dim in given[1])))


def _tiled(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return given[0].size * math.prod(abs(int(count)) for count in given[1].ravel())


def _padded(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    if reader.attribute(node, "mode", "constant") != "constant":
        raise Unsupported(f"mode {reader.attribute(node, 'mode')}")
    pads = reader.attribute(node, "pads") if len(given) < 2 else given[1].ravel()
    return math.prod(size + sum(abs(int(pad)) for pad in pads) for size in given[0].shape)


def _one_hot(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    return given[0].size * abs(int(given[1].reshape(1)[0]))


def _multiplied(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """A matrix product, on the left of which a vector is a row, and on the right a column."""
    a, b = given[:2]
    a, b = a.reshape(1, -1) if a.ndim == 1 else a, b.reshape(-1, 1) if b.ndim == 1 else b
    count = math.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * b.shape[-1]
    _multiply(reader, count * a.shape[-1], a, b)
    return count


def _gemm(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    a, b, *more = given
    rows, inner = a.shape[::-1] if reader.attribute(node, "transA", 0) else a.shape
    _, columns = b.shape[::-1] if reader.attribute(node, "transB", 0) else b.shape
    _multiply(reader, rows * inner * columns, a, b)
    return math.prod(np.broadcast_shapes((rows, columns), *(each.shape for each in more)))


def _multiply(reader: Reader, count: int, a: np.ndarray, b: np.ndarray) -> None:
    """Takes so many multiply-adds of a product."""
    reader.budget.multiply(count * (1 if np.result_type(a, b).char in "fd" else _WITHOUT_BLAS))


def _softmaxed(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """Before opset 13 along all axes from one on together, which ONNX's evaluator does not know."""
    if reader.opset < 13:
        axis = axis_of(reader.attribute(node, "axis", _AXIS_OF_SOFTMAX), given[0].ndim)
        if math.prod(given[0].shape[axis + 1 :]) != 1:
            raise Unsupported("along several axes together")
    return given[0].size


def _dequantized(reader: Reader, node: NodeProto, given: Sequence[np.ndarray]) -> int:
    """By one scale, by one for each place of an axis, or, which are repeated, by one for each block of it."""
    values, several = given[0], [each for each in given[1:] if each.size > 1]  # scales, and points that are zero
    block = reader.attribute(node, "block_size", 0)
    if reader.attribute(node, "output_dtype") == _TEXT:
        raise Unsupported("a cast to texts")
    if several and not block:
        axis = axis_of(reader.attribute(node, "axis", 1), values.ndim)
        if any(each.shape != (values.shape[axis],) for each in several):
            raise ValueError(f"scales of another number than the {values.shape[axis]} places of axis {axis}")
    return max([values.size, *(each.size * abs(block) for each in several)])


_SINCE = {"DequantizeLinear": 19}  # the first opset of which ONNX's evaluator has it; it was the same before
_SIZES: dict[str, Size] = {
    **dict.fromkeys(
        "Abs ArgMax ArgMin Ceil Cos CumSum Elu Exp EyeLike Flatten Floor HardSigmoid IsInf IsNaN LeakyRelu Log Neg Not "
        "Reciprocal Relu Reshape Round Sigmoid Sign Sin Slice Softplus Sqrt Tanh TopK Transpose Trilu ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum ReduceL2 ReduceSumSquare".split(),
        _first,
    ),
    **dict.fromkeys(
        "Add And Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where "
        "Xor".split(),
        _broadcast,
    ),
    **dict.fromkeys(["Erf", "GatherElements", "NonZero", "ScatterElements", "ScatterND"], _one_by_one),
    **dict.fromkeys(["Cast", "CastLike"], _cast),
    **dict.fromkeys(["Softmax", "LogSoftmax"], _softmaxed),
    **dict.fromkeys(["Squeeze", "Unsqueeze"], _moved),
    "Concat": _together,
    "ConstantOfShape": _shaped,
    "DequantizeLinear": _dequantized,
    "Expand": _expanded,
    "Gather": _gathered,
    "GatherND": _gathered_nd,
    "Gemm": _gemm,
    "MatMul": _multiplied,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Range": _range,
    "Split": _split,
    "Tile": _tiled,
}
