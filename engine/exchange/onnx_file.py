"""ONNX files: read without trusting them, written whole or not at all. Nobody else imports the onnx package."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError
from engine.files import atomic_write, opened, read_bytes, reason

if TYPE_CHECKING:
    import onnx
    from onnx import NodeProto as NodeProto
    from onnx import TensorProto as TensorProto
    from onnx import ValueInfoProto as ValueInfoProto

OPSET, IR_VERSION = 21, 10  # ONNX Runtime has no kernel for some later versions of operators (MaxRoiPool 22)
WHOLE_TYPES = (2, 3, 4, 5, 6, 7, 9, 12, 13)  # TensorProto's numbers of those of whole numbers, truth values among them
EXTERNAL_FROM = 1024  # bytes of a weight that lies in a file of its own, where there is one
MOST_BYTES = 2**31 - 1  # of a protobuf message


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
    return model


def inlined(model: onnx.ModelProto, path: str) -> onnx.ModelProto:
    """The model with the functions that it brings along written out. Raises EngineError."""
    if not model.functions:
        return model
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # whatever the package's C++ says of it
        raise EngineError(f"its functions cannot be resolved ({reason(error)})", path) from None


def evaluate(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opsets: Sequence[Any], most: int) -> list[np.ndarray]:
    """What a node makes of arrays. Raises whatever an operator makes of wrong ones, ValueError where it would make more
    than `most` values of them, as a sum of a row and a column may."""
    import onnx.helper
    import onnx.shape_inference
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(helper.make_graph([node], "constant", inputs, outputs), opset_imports=opsets)
    for output in onnx.shape_inference.infer_shapes(model).graph.output:  # a size of 0 where it depends on the values
        if math.prod(dim.dim_value for dim in output.type.tensor_type.shape.dim) > most:
            raise ValueError("a constant of too many values")
    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]


class Tensors:
    """Reads the tensors of one model: what is in it, and what lies in files beside it, never elsewhere."""

    def __init__(self, path: str | os.PathLike):
        self._path, self._folder = str(path), Path(path).resolve().parent

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
    """Writes a model; weights of more than protobuf holds go to a file beside it. Raises EngineError."""
    onnx = import_onnx_package()
    if model.ByteSize() > MOST_BYTES:
        data = Path(f"{path}.data")
        with atomic_write(data) as file:
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) >= EXTERNAL_FROM:
                    place = {"location": data.name, "offset": file.tell(), "length": len(tensor.raw_data)}
                    file.write(tensor.raw_data)
                    tensor.ClearField("raw_data")
                    tensor.data_location = onnx.TensorProto.EXTERNAL
                    for key, value in place.items():
                        tensor.external_data.add(key=key, value=str(value))
    with atomic_write(path) as file:
        file.write(model.SerializeToString())
