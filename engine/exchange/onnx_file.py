"""Reads ONNX files without trusting them, and writes them whole or not at all. No other file imports the onnx
package."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from engine.errors import EngineError
from engine.files import atomic_write, check_writable, opened, read_bytes, reason, unfinished

if TYPE_CHECKING:
    import onnx
    from onnx import NodeProto as NodeProto
    from onnx import TensorProto as TensorProto
    from onnx import ValueInfoProto as ValueInfoProto

OPSET, IR_VERSION = 21, 10  # ONNX Runtime has no kernel for some later versions of operators (MaxRoiPool 22)
WHOLE_TYPES = (2, 3, 4, 5, 6, 7, 9, 12, 13)  # the TensorProto.DataType of whole numbers and of truth values
EXTERNAL_FROM = 1024  # in a model with external data, weights of this many bytes or more go there
MOST_BYTES = 2**31 - 1  # limit of a protobuf message

# Limits of a model whose functions are written out: a few that call each other may stand for any number of nodes.
_DEEPEST_CALLS = 100  # functions that call functions; those of exporters go about 10 deep
_MOST_NODES = 1_000_000  # nodes and attributes of nodes, together
_MOST_CALLED_BYTES = 1 << 29  # of nodes that come from functions

_Key = tuple[str, str, str]  # of a function: domain, name, overload

_MOST_SHARED = 4  # tensors may share external data: the bytes read of a file are at most so many times its size


def import_onnx_package() -> ModuleType:
    """Imports the onnx package, which is an extra, and returns it. Raises EngineError, which says how to install it, if
    it is not there."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise EngineError("ONNX files need the onnx package: pip install prototxt-engine[onnx]") from None
    return onnx


def read_model(path: str | os.PathLike) -> onnx.ModelProto:
    """Returns the model in a file. Its external data is not read yet: Tensors reads that.

    Raises EngineError for a file that cannot be read or is no ONNX model.
    """
    onnx = import_onnx_package()
    model = onnx.ModelProto()
    content = read_bytes(path)
    try:
        model.ParseFromString(content)
    except Exception as error:  # DecodeError, which each of protobuf's implementations has as a class of its own
        raise EngineError(f"truncated or not an ONNX model ({reason(error)})", str(path)) from None
    if not model.opset_import or not model.graph.output:
        raise EngineError("truncated or not an ONNX model (no opset, or a graph without outputs)", str(path))
    _check_texts(model, str(path))
    return model


def _check_texts(model: onnx.ModelProto, path: str) -> None:
    """Raises EngineError if a text in a message is not UTF-8.

    Parsing does not tell: of protobuf's implementations, some then return bytes for a text, others raise
    UnicodeDecodeError when it is read.
    """
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        texts, text_lists, messages, message_lists = _fields(message.DESCRIPTOR)
        try:
            for name in texts:
                if not isinstance(value := getattr(message, name), str):
                    raise ValueError(value)
            for name in text_lists:
                for value in getattr(message, name):
                    if not isinstance(value, str):
                        raise ValueError(value)
        except ValueError as error:  # UnicodeDecodeError is one, too
            where = f"{name} of a {message.DESCRIPTOR.name}"
            raise EngineError(f"the {where} is not UTF-8 ({reason(error)})", path) from None
        waiting += [getattr(message, name) for name in messages if message.HasField(name)]
        for name in message_lists:
            waiting += getattr(message, name)


@functools.cache
def _fields(descriptor: Any) -> tuple[list[str], list[str], list[str], list[str]]:
    """Returns the names of a message's fields that hold a text, a list of texts, a message, a list of messages."""
    texts = [field for field in descriptor.fields if field.type == field.TYPE_STRING]
    messages = [field for field in descriptor.fields if field.message_type is not None]
    return (
        [field.name for field in texts if field.has_presence],
        [field.name for field in texts if not field.has_presence],
        [field.name for field in messages if field.has_presence],
        [field.name for field in messages if not field.has_presence],
    )


def inlined(model: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """Returns the model with every call of one of its own functions replaced by the function's nodes.

    Raises EngineError if a call cannot be replaced, or if the model would become too large.
    """
    if not model.functions:
        return model
    import onnx.inliner

    _check_functions(model, path)

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the package's C++ does not say what it raises
        raise EngineError(f"its functions cannot be resolved ({reason(error)})", path) from None


def _check_functions(model: onnx.ModelProto, path: str) -> None:
    """Raises EngineError if functions call themselves, or if the model with their nodes written out would be too
    large."""
    functions = {_key(function, function.name): function for function in model.functions}
    if len(functions) < len(model.functions):
        raise EngineError("two of its functions have one name", path)
    callees = {
        key: {called for node in _nodes(function.node) if (called := _key(node, node.op_type)) in functions}
        for key, function in functions.items()
    }
    known: dict[_Key, _Extent] = {}
    for _ in range(_DEEPEST_CALLS):  # first the functions that call none, then those that call only these, and so on
        ready = [key for key, called in callees.items() if key not in known and called <= known.keys()]
        for key in ready:
            function = functions[key]
            inside = _written_out(function.node, known, path)
            defaults = sum(each.ByteSize() for each in function.attribute_proto)
            known[key] = _Extent(inside.nodes, inside.size + function.ByteSize() + inside.nodes * defaults)
    if len(known) < len(functions):
        raise EngineError(f"its functions call themselves, or each other more than {_DEEPEST_CALLS} deep", path)
    nodes, size = _written_out(model.graph.node, known, path)
    if nodes > _MOST_NODES or size > _MOST_CALLED_BYTES:
        raise EngineError(
            f"with its functions written out it would have {nodes} nodes and attributes, {size} bytes of them from "
            f"functions; expected at most {_MOST_NODES} and {_MOST_CALLED_BYTES}",
            path,
        )


class _Extent(NamedTuple):
    """How large nodes are with the functions that they call written out."""

    nodes: int  # nodes and their attributes
    size: int  # bytes of those that come from functions, at most


def _key(message: onnx.NodeProto | onnx.FunctionProto, name: str) -> _Key:
    """Returns what identifies a function, or the function that a node calls: its domain, name and overload."""
    return "" if message.domain == "ai.onnx" else message.domain, name, message.overload


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yields nodes, and the nodes of the graphs that are their attributes."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


def _written_out(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Key, _Extent], path: str) -> _Extent:
    """Returns how large nodes become.

    Each node of a function may refer to the attributes of the call, and so may get a copy of them. Raises EngineError
    for a call with a graph as an attribute, whose copies would be nodes that are not counted here.
    """
    count = size = 0
    for node in _nodes(nodes):
        count += 1 + len(node.attribute)
        if function := functions.get(_key(node, node.op_type)):
            if any(each.HasField("g") or each.graphs for each in node.attribute):
                raise EngineError(f"a call of its function '{node.op_type}' has a graph as an attribute", path)
            count += function.nodes
            size += function.size + function.nodes * node.ByteSize()
    return _Extent(count, size)


def evaluate(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """Returns the outputs of a node for arrays, computed by ONNX's reference evaluator.

    It may raise any exception: the evaluator checks nothing.

    Args:
        feeds: the node's inputs by name.
        opset: the version of ONNX's operators.
    """
    import onnx.helper
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]


class Tensors:
    """Reads the tensors of one model. Their data may lie in the model or in a file of its folder, nowhere else."""

    def __init__(self, path: str | os.PathLike):
        self._path, self._folder = str(path), Path(path).resolve().parent
        self._read: dict[Path, int] = {}  # how many bytes were read of each file of external data

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Returns the values of a tensor. Raises EngineError if it is damaged, or if its data is missing or outside of
        the model's folder."""
        onnx = import_onnx_package()
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = self._with_external(tensor)
        try:
            return onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # such as KeyError for a type that NumPy lacks
            raise self._error(tensor, f"cannot be read ({reason(error)})") from None

    def _with_external(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Returns a copy of a tensor that holds its external data itself."""
        onnx = import_onnx_package()
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get("location", "")
        try:
            offset, length = int(where.get("offset", 0)), int(where.get("length", -1))
            file = (self._folder / location).resolve()
        except (ValueError, OSError, RuntimeError) as error:
            raise self._error(tensor, f"says nonsense of its external data ({reason(error)})") from None
        if not location or os.path.isabs(location) or not file.is_relative_to(self._folder):
            raise self._error(
                tensor, f"has external data outside of the model's folder, '{location}', which is refused"
            )
        with opened(file, EngineError, f"{self._path}: tensor '{tensor.name}'") as data:
            size = os.fstat(data.fileno()).st_size
            length = size - offset if length < 0 else length
            if offset < 0 or length < 0 or offset + length > size:
                raise self._error(
                    tensor, f"has {length} bytes from {offset} on in '{location}', which has {size} bytes in all"
                )
            self._read[file] = self._read.get(file, 0) + length
            if self._read[file] > _MOST_SHARED * size:
                raise self._error(tensor, f"shares its bytes of '{location}' with too many others")
            data.seek(offset)
            content = data.read(length)
        inside = onnx.TensorProto()
        inside.CopyFrom(tensor)
        inside.data_location = onnx.TensorProto.DEFAULT
        inside.ClearField("external_data")
        inside.raw_data = content
        return inside

    def _error(self, tensor: onnx.TensorProto, message: str) -> EngineError:
        return EngineError(f"tensor '{tensor.name}' {message}", self._path)


def write_model(path: str | os.PathLike, model: onnx.ModelProto) -> None:
    """Writes a model. If it is too large for protobuf, its weights go to a second file, PATH.data.

    Raises EngineError if a file cannot be written. Then both are as they were before.
    """
    if model.ByteSize() <= MOST_BYTES:
        with atomic_write(path) as file:
            file.write(_serialised(model, path))
        return
    data = Path(f"{path}.data")
    check_writable(path)
    check_writable(data)
    # A second name for the data of a model that is written over: it is put back if writing the model fails.
    before = unfinished(data, "tmp") if os.path.lexists(data) else None
    try:
        with atomic_write(path) as file, atomic_write(data) as weights:  # on leaving, the weights take their name first
            _move_weights(model, data.name, weights)
            file.write(_serialised(model, path))
            file.flush()
            os.fsync(file.fileno())  # so that a full disk is an error before either file takes its name
            if before:
                _name_also(data, before)
    except BaseException:
        _put_back(data, before)
        raise
    if before:
        before.unlink()


def _name_also(path: Path, other: Path) -> None:
    """Gives a file a second name, so that it survives when another file takes the first. Where links are not possible,
    the file loses its first name."""
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError:  # the file system has no links, or the system forbids links to files of other users
        os.rename(path, other)


def _put_back(path: Path, before: Path | None) -> None:
    """Restores the file that had the name `path` before an error.

    Args:
        before: the second name of that file, which it may not have been given yet; None if there was no such file.
    """
    with contextlib.suppress(OSError):  # such as of a folder that has become read-only: the first error is told instead
        if before is None:
            path.unlink(missing_ok=True)
        elif os.path.lexists(before):
            os.replace(before, path)
            before.unlink(missing_ok=True)  # os.replace() leaves both names if they are of one file


def _serialised(model: onnx.ModelProto, path: str | os.PathLike) -> bytes:
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf's EncodeError: even without its weights a model may exceed MOST_BYTES
        raise EngineError(f"cannot be written: {reason(error)}", str(path)) from None


def _move_weights(model: onnx.ModelProto, name: str, file: BinaryIO) -> None:
    """Moves the large weights of a model to an open file.

    Args:
        name: of the file, relative to the model's folder. The model refers to it in place of the weights.
    """
    onnx = import_onnx_package()
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= EXTERNAL_FROM:
            place = {"location": name, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
