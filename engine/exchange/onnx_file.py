"""ONNX files: read without trusting them, written whole or not at all. Nobody else imports the onnx package."""

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
WHOLE_TYPES = (2, 3, 4, 5, 6, 7, 9, 12, 13)  # TensorProto's numbers of those of whole numbers, truth values among them
EXTERNAL_FROM = 1024  # bytes of a weight that lies in a file of its own, where there is one
MOST_BYTES = 2**31 - 1  # of a protobuf message

# What comes of functions, a few of which, calling each other, may stand for any number of nodes.
_DEEPEST_CALLS = 100  # of functions by functions; exporters' go to about 10
_MOST_NODES = 1_000_000  # and attributes of nodes
_MOST_CALLED_BYTES = 1 << 29

_MOST_SHARED = 4  # times that external data is read, on the average of a file


def import_onnx_package() -> ModuleType:
    """Returns the onnx package, which is an extra. Raises EngineError, which says how to install it."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise EngineError("ONNX files need the onnx package: pip install prototxt-engine[onnx]") from None
    return onnx


def read_model(path: str | os.PathLike) -> onnx.ModelProto:
    """The model of a file, whose external data is not read yet: see Tensors. Raises EngineError."""
    onnx = import_onnx_package()
    model = onnx.ModelProto()
    content = read_bytes(path)
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError, of whichever implementation
        raise EngineError(f"truncated or not an ONNX model ({reason(error)})", str(path)) from None
    if not model.opset_import or not model.graph.output:
        raise EngineError("truncated or not an ONNX model (no opset, or a graph without outputs)", str(path))
    _check_texts(model, str(path))
    return model


def _check_texts(model: onnx.ModelProto, path: str) -> None:
    """Raises EngineError for a text that is not UTF-8: some of protobuf's implementations give bytes for it."""
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        texts, lists, parts, several = _fields(message.DESCRIPTOR)
        try:
            for name in texts:
                if not isinstance(value := getattr(message, name), str):
                    raise ValueError(value)
            for name in lists:
                for value in getattr(message, name):
                    if not isinstance(value, str):
                        raise ValueError(value)
        except ValueError as error:  # UnicodeDecodeError, of the others
            where = f"{name} of a {message.DESCRIPTOR.name}"
            raise EngineError(f"the {where} is not UTF-8 ({reason(error)})", path) from None
        waiting += [getattr(message, name) for name in parts if message.HasField(name)]
        for name in several:
            waiting += getattr(message, name)


@functools.cache
def _fields(descriptor: Any) -> tuple[list[str], list[str], list[str], list[str]]:
    """The names of a message's fields of one text, of several texts, of one message, of several."""
    texts = [field for field in descriptor.fields if field.type == field.TYPE_STRING]
    parts = [field for field in descriptor.fields if field.message_type is not None]
    return (
        [field.name for field in texts if field.has_presence],
        [field.name for field in texts if not field.has_presence],
        [field.name for field in parts if field.has_presence],
        [field.name for field in parts if not field.has_presence],
    )


def inlined(model: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """The model with the functions that it brings along written out. Raises EngineError."""
    if not model.functions:
        return model
    import onnx.inliner

    _check_functions(model, path)

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # whatever the package's C++ says of it
        raise EngineError(f"its functions cannot be resolved ({reason(error)})", path) from None


def _check_functions(model: onnx.ModelProto, path: str) -> None:
    """Raises EngineError where functions call themselves, or would be written out without end."""
    functions = {_called(function, function.name): function for function in model.functions}
    if len(functions) < len(model.functions):
        raise EngineError("two of its functions have one name", path)
    callees = {
        name: {called for node in _nodes(function.node) if (called := _called(node, node.op_type)) in functions}
        for name, function in functions.items()
    }
    known: dict[tuple[str, str, str], _Extent] = {}
    for _ in range(_DEEPEST_CALLS):  # those that call nothing first, then those that call only these, and so on
        ready = [name for name, called in callees.items() if name not in known and called <= known.keys()]
        for name in ready:
            function = functions[name]
            inside = _written_out(function.node, known, path)
            defaults = sum(each.ByteSize() for each in function.attribute_proto)
            known[name] = _Extent(inside.nodes, inside.size + function.ByteSize() + inside.nodes * defaults)
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
    """How many nodes and attributes something has, and at most how many bytes those of functions are."""

    nodes: int
    size: int


def _called(part: onnx.NodeProto | onnx.FunctionProto, name: str) -> tuple[str, str, str]:
    """What tells functions apart."""
    return "" if part.domain == "ai.onnx" else part.domain, name, part.overload


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs that are attributes of them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


def _written_out(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[tuple[str, str, str], _Extent], path: str
) -> _Extent:
    """What nodes become: each of a function may have the attributes of its call, which so may hold no graph."""
    count = size = 0
    for node in _nodes(nodes):
        count += 1 + len(node.attribute)
        if function := functions.get(_called(node, node.op_type)):
            if any(each.HasField("g") or each.graphs for each in node.attribute):
                raise EngineError(f"a call of its function '{node.op_type}' has a graph as an attribute", path)
            count += function.nodes
            size += function.size + function.nodes * node.ByteSize()
    return _Extent(count, size)


def evaluate(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """What a node makes of arrays. Raises whatever an operator makes of wrong ones."""
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
    """Reads the tensors of one model: what is in it, and what lies in files beside it, never elsewhere."""

    def __init__(self, path: str | os.PathLike):
        self._path, self._folder = str(path), Path(path).resolve().parent
        self._read: dict[Path, int] = {}  # bytes, of each file beside it

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Raises EngineError for a tensor that is damaged, or whose data is missing or outside of the folder."""
        onnx = import_onnx_package()
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = self._with_external(tensor)
        try:
            return onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # ValueError, TypeError, KeyError of types that NumPy lacks
            raise self._error(tensor, f"cannot be read ({reason(error)})") from None

    def _with_external(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
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
    """Writes a model; weights of more than protobuf holds go to a file beside it. Raises EngineError; then neither is
    new."""
    if model.ByteSize() <= MOST_BYTES:
        with atomic_write(path) as file:
            file.write(_serialised(model, path))
        return
    data = Path(f"{path}.data")
    check_writable(path)
    check_writable(data)
    before = unfinished(data, "tmp") if os.path.lexists(data) else None  # the data of a model that is written over
    try:
        with atomic_write(path) as file, atomic_write(data) as weights:  # which takes its name first
            _move_weights(model, data.name, weights)
            file.write(_serialised(model, path))
            file.flush()
            os.fsync(file.fileno())  # where the disk is full, neither takes its name
            if before:
                _name_also(data, before)
    except BaseException:
        _put_back(data, before)
        raise
    if before:
        before.unlink()


def _name_also(path: Path, other: Path) -> None:
    """Gives a file another name, which stays its own when a new file takes the first one."""
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError:  # the file system has no links, or the system allows none of others' files
        os.rename(path, other)


def _put_back(path: Path, before: Path | None) -> None:
    """After an error: what there was of this name. before: its other name, if it has got that; None: there was none."""
    with contextlib.suppress(OSError):  # of a folder that has become read-only: what went wrong first is told
        if before is None:
            path.unlink(missing_ok=True)
        elif os.path.lexists(before):
            os.replace(before, path)
            before.unlink(missing_ok=True)  # of one file that has both names still, the system has left it


def _serialised(model: onnx.ModelProto, path: str | os.PathLike) -> bytes:
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf's EncodeError: without its weights, too, it may have more than MOST_BYTES
        raise EngineError(f"cannot be written: {reason(error)}", str(path)) from None


def _move_weights(model: onnx.ModelProto, name: str, file: BinaryIO) -> None:
    """Writes the weights to an open file, whose name the model gets in their place."""
    onnx = import_onnx_package()
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= EXTERNAL_FROM:
            place = {"location": name, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
