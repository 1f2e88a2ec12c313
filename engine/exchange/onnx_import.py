"""`engine import` of ONNX: makes a prototxt and a caffemodel of a model.

All shapes are known, since those of the inputs are in the file or are given by the user. So what is computed from
shapes alone becomes a constant, and only operators on data become layers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from engine.errors import ConfigError, EngineError
from engine.exchange.folding import folded
from engine.exchange.from_onnx.elementwise import along_axis
from engine.exchange.from_onnx.registry import Budget, Unsupported, Value, import_of
from engine.exchange.net_maker import NetMaker, Padded, check_outputs
from engine.exchange.onnx_file import WHOLE_TYPES, Tensors, import_onnx_package, inlined, read_model
from engine.exchange.onto import transfer
from engine.files import reason
from engine.layers.base import Blob, Shape

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto, TensorProto, ValueInfoProto


def import_onnx(
    source: str | os.PathLike,
    net: str | os.PathLike,
    weights: str | os.PathLike,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch_size: int | None = None,
    onto: bool = False,
) -> list[str]:
    """Writes the prototxt `net` and the caffemodel `weights` of an ONNX model.

    Args:
        shapes: of inputs, by name, where the model leaves axes open.
        batch_size: of inputs of which only the first axis is open; None stands for 1.
        onto: `net` exists, and its layers take the weights of the layers that compute the same.
    Returns:
        Notes on what may differ between the model and the net.
    Raises:
        ConfigError: `shapes` names no input, or no input leaves its batch open for batch_size.
        EngineError: the file is no model, has operators that no layer computes (one line names them all), or the onnx
            package is not installed; see also check_outputs().
    """
    check_outputs(net, weights, onto)
    reader = Reader(source, shapes or {}, batch_size)
    reader.check_asked()
    reader.read()
    if onto:
        reader.notes += transfer(reader.maker, net, weights)
    else:
        reader.maker.write(net, weights)
    return reader.notes


class Reader:
    """Reads one model node by node, and makes a net of it.

    Attributes:
        values: what was read so far, by the name that the model has for it.
        maker: the net.
        budget: how many values may still be computed.
    """

    def __init__(self, source: str | os.PathLike, shapes: Mapping[str, Sequence[int]], batch_size: int | None):
        self.onnx: Any = import_onnx_package()
        self.source = str(source)
        self.model = inlined(read_model(source), self.source)
        self.tensors = Tensors(source)
        self.graph = self.model.graph
        self.maker = NetMaker(self.graph.name or Path(source).stem, source)
        self.values: dict[str, Value | None] = {"": None}
        self.notes: list[str] = []
        self.budget = Budget()
        self._shapes, self._batch_size = shapes, batch_size
        self._unsupported: dict[str, str] = {}  # operator -> its first node that no layer computes, and why
        self._lost: set[str] = set()  # names of the outputs of such nodes, and of what depends on them
        self.opset = max(
            (each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx")), default=1
        )
        self._node: NodeProto  # the one that is being read
        self._known_as: dict[Blob, list[str]] = {}  # the names that the model has for a blob
        self._whole: set[Blob] = set()  # blobs that hold whole numbers
        self._outer = {each.name for each in (*self.graph.input, *self.graph.output)}
        self._reads: dict[str, int] = {}  # how often a value is read, by name
        for node in self.graph.node:
            for name in node.input:
                self._reads[name] = self._reads.get(name, 0) + 1
        for output in self.graph.output:
            self._reads[output.name] = self._reads.get(output.name, 0) + 1

    def read(self) -> None:
        """Makes the whole net. Raises EngineError if it cannot."""
        for tensor in self.graph.initializer:
            self.values[tensor.name] = self._array(tensor)
        for info in self.graph.input:
            if info.name not in self.values:
                blob = self.values[info.name] = self.maker.input(info.name, self._shape_of(info))
                self._known_as[blob] = [info.name]
                if info.type.tensor_type.elem_type in WHOLE_TYPES:
                    self._whole.add(blob)
        for node in self.graph.node:
            self._read_node(node)
        if self._unsupported:
            found = "; ".join(f"{operator} ({why})" for operator, why in self._unsupported.items())
            raise EngineError(f"no layer computes {found}", self.source)
        self._name_outputs()

    def _shape_of(self, info: ValueInfoProto) -> Shape:
        """Returns the shape of an input. Raises EngineError if the model leaves it open and nobody has given it."""
        if info.name in self._shapes:
            return tuple(self._shapes[info.name])
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise EngineError(f"input '{info.name}' has no shape; give it, as with --shape {info.name}=1,3,224,224",
                              self.source)  # fmt: skip
        dims = [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]
        if dims and dims[0] is None:
            dims[0] = self._batch_size or 1
        if None in dims:
            names = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim]
            shape = ",".join(str(dim or 224) for dim in dims)
            raise EngineError(
                f"input '{info.name}' has the shape {names}, with more than its batch open; give it, as with --shape "
                f"{info.name}={shape}",
                self.source,
            )
        return tuple(dims)  # type: ignore[arg-type]

    def check_asked(self) -> None:
        """Raises ConfigError if the user gave the shape of an unknown input, or a batch size that no input takes."""
        weights = {tensor.name for tensor in self.graph.initializer}
        inputs = {info.name: info.type.tensor_type.shape for info in self.graph.input if info.name not in weights}
        for name in self._shapes:
            if name not in inputs:
                raise ConfigError(f"--shape {name}: no such input; known: {', '.join(inputs)}", self.source)
        shapes = [shape for name, shape in inputs.items() if name not in self._shapes and shape.dim]
        if self._batch_size and all(shape.dim[0].dim_value > 0 for shape in shapes):
            raise ConfigError("--batch_size: without effect, for no input leaves its batch open; leave it out",
                              self.source)  # fmt: skip

    def _read_node(self, node: NodeProto) -> None:
        """Computes a node, or makes layers of it. One that is not supported is noted for the error that read() raises;
        nodes that depend on it are passed over."""
        self._node = node
        operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if self._lost & set(node.input):
            self._lost.update(node.output)
            return
        for name in node.input:
            if name not in self.values:
                raise EngineError(f"{self.place()} reads '{name}', which nothing before it makes", self.source)
        given = [self.values[name] for name in node.input]
        first = len(self.maker.message.layer)
        try:
            given = along_axis(self, node, given)
            made = self._folded(node, given)
            if made is None:
                read = import_of(operator)
                if read is None:
                    raise Unsupported("")
                made = read(self, node, *given)
        except Unsupported as error:
            self._lost.update(node.output)
            self._unsupported.setdefault(operator, f"{self.place()}: {error}" if str(error) else self.place())
            return
        except EngineError as error:
            raise EngineError(f"{self.place()}: {str(error).removeprefix(f'{self.source}: ')}", self.source) from None
        except (IndexError, KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise EngineError(f"{self.place()} makes no sense ({reason(error)})", self.source) from None
        results: list[Value] = list(made) if isinstance(made, list | tuple) else [cast("Value", made)]
        for name, value in zip(node.output, results, strict=False):
            if name:
                self.values[name] = value
                if isinstance(value, Blob):
                    self._known_as.setdefault(value, []).append(name)
        self._name(node, first, results)

    def _name(self, node: NodeProto, first: int, results: Sequence[Value]) -> None:
        """Gives tops that a node has made the names of its outputs, and the last of its layers, Silence aside, its own
        name.

        Args:
            first: index of the node's first layer.
        """
        layers = self.maker.message.layer
        if len(layers) == first:
            return
        added = [layers[i] for i in range(first, len(layers))]
        made = {top for layer in added for top in layer.top}
        for name, value in zip(node.output, results, strict=False):
            if name and isinstance(value, Blob) and value.name in made:
                self.maker.rename(value, name)
        if named := [i for i, layer in enumerate(added, start=first) if layer.type != "Silence"]:
            self.maker.rename_layer(named[-1], self._node_name())

    def _folded(self, node: NodeProto, given: Sequence[Value | None]) -> list[np.ndarray] | None:
        """Returns the outputs of a node that reads only constants or shapes; None for other nodes."""
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in ("Shape", "Size") and given and given[0] is not None:
            shape = np.array(given[0].shape, np.int64)
            start, end = self.attribute(node, "start", 0), self.attribute(node, "end", len(shape))
            return [shape[start:end]] if node.op_type == "Shape" else [np.array(shape.prod(), np.int64)]
        return [self._constant(node)] if node.op_type == "Constant" else folded(self, node, given)

    def _array(self, tensor: TensorProto) -> np.ndarray:
        """Returns the values of a tensor of the model, whose size adds to the budget."""
        array = self.tensors.array(tensor)
        self.budget.add(array.size)
        return array

    def _constant(self, node: NodeProto) -> np.ndarray:
        """Returns the output of a Constant."""
        for attribute in node.attribute:
            if attribute.name == "value":
                return self._array(attribute.t)
            if attribute.name in ("value_float", "value_floats"):
                return np.array(self.onnx.helper.get_attribute_value(attribute), np.float32)
            if attribute.name in ("value_int", "value_ints"):
                return np.array(self.onnx.helper.get_attribute_value(attribute), np.int64)
        raise Unsupported("a constant that is neither a tensor nor numbers")

    def _name_outputs(self) -> None:
        """Gives each output of the model a top of its name."""
        for output in self.graph.output:
            if self.values.get(output.name) is None:
                raise EngineError(f"output '{output.name}' is made by no node", self.source)
            try:
                blob = self.blob(self.values[output.name], output.name)
            except Unsupported as error:
                raise EngineError(f"output '{output.name}' is {error}", self.source) from None
            if blob.name != output.name:
                if self._is_free(blob):
                    self.maker.rename(blob, output.name)
                else:
                    self.maker.layer(output.name, "Split", [blob])

    def _is_free(self, blob: Blob) -> bool:
        """Returns whether a blob may be renamed: it has the name of neither an input nor another output."""
        return blob.name not in self._outer

    # The following methods are for the functions of operators, in engine/exchange/from_onnx/.

    def place(self) -> str:
        """Names the node that is being read, for messages."""
        return f"node '{self._node.name or (self._node.output or ['?'])[0]}' ({self._node.op_type})"

    def attribute(self, node: NodeProto, name: str, default: Any = None) -> Any:
        """Returns an attribute of a node: a number, a text or a list; `default` if the node leaves it out."""
        for each in node.attribute:
            if each.name == name:
                value = self.onnx.helper.get_attribute_value(each)
                return (
                    value.decode() if isinstance(value, bytes) else list(value) if each.ints or each.floats else value
                )
        return default

    def layer(
        self, type: str, bottoms: Sequence[Value | None], arrays: Sequence[np.ndarray] = (), **fields: Any
    ) -> Blob:
        """Adds a layer of one top for the node that is being read; returns the top. Raises Unsupported if the budget
        does not allow its parameters, EngineError if it does not fit.

        Args:
            arrays: its parameters.
            fields: of LayerParameter, messages as dicts.
        """
        for array in arrays:
            self.budget.take(array.size, array.size)
        blobs = [self.blob(value) for value in bottoms]
        top = self.maker.layer(self._layer_name(type), type, blobs, arrays, **fields)
        if type == "Threshold" or (type == "ArgMax" and not fields["argmax_param"].get("out_max_val")):
            self._whole.add(top)
        return top

    def layers(self, type: str, bottoms: Sequence[Value], count: int, **fields: Any) -> list[Blob]:
        """Adds a layer of `count` tops, without parameters; returns the tops."""
        return self.maker.layers(self._layer_name(type), type, [self.blob(each) for each in bottoms], count, **fields)

    def _layer_name(self, type: str) -> str:
        return f"{self._node_name()}/{type.lower()}"

    def _node_name(self) -> str:
        return self._node.name or next(filter(None, self._node.output), self._node.op_type)

    def blob(self, value: Value | None, name: str = "") -> Blob:
        """Returns a value as a blob. A constant becomes a Parameter layer, and padding a Convolution.

        Raises Unsupported for a value that is left out, a constant of texts, and one too large for the budget.

        Args:
            name: of the Parameter layer.
        """
        if isinstance(value, Blob):
            return value
        if isinstance(value, Padded):
            from engine.exchange.from_onnx.padding import padded

            return padded(self, value)
        if value is None:
            raise Unsupported("an input that is left out")
        if value.dtype.kind in "OSU":
            raise Unsupported("a constant of texts")
        self.budget.take(value.size, value.size)
        array = np.asarray(value, np.float32)
        shape = {"shape": {"dim": array.shape}}
        return self.maker.layer(name or self._layer_name("constant"), "Parameter", [], [array], parameter_param=shape)

    def is_read(self, name: str) -> bool:
        """Returns whether a node reads a value, or it is an output of the model. The name of an output that a node
        leaves out is empty."""
        return bool(name) and self._reads.get(name, 0) > 0

    def reads_alone(self, blob: Blob) -> bool:
        """Returns whether the node that is being read is the only reader of a blob. A blob that an Identity gave a
        second name counts as read by others, too."""
        names = self._known_as.get(blob, [])
        return len(names) == 1 and self._reads[names[0]] == 1

    def is_whole(self, blob: Value) -> bool:
        """Returns whether a value is known to be a blob of whole numbers: an input of such, the 0s and 1s of a
        Threshold, or places of maxima."""
        return isinstance(blob, Blob) and blob in self._whole

    def reshape(self, value: Value, shape: Sequence[int]) -> Blob:
        """Returns a value as a blob of another shape. Where the first axis keeps its size, the Reshape copies it from
        the bottom (dim 0), so that the batch of the net can be changed."""
        blob = self.blob(value)
        if tuple(shape) == blob.shape:
            return blob
        dims = [int(dim) for dim in shape]
        if dims and blob.shape and dims[0] == blob.shape[0]:
            dims[0] = 0
        return self.layer("Reshape", [blob], reshape_param={"shape": {"dim": dims}})

    def slice(self, value: Value, axis: int, begin: int, end: int) -> Blob:
        """Returns a value's places from `begin` to before `end` along an axis, as a blob. Raises Unsupported if there
        are none."""
        blob = self.blob(value)
        size = blob.shape[axis]
        if (begin, end) == (0, size):
            return blob
        if not 0 <= begin < end <= size:
            raise Unsupported(f"an empty part, {begin} to {end}, of an axis of {size}")
        points = [point for point in (begin, end) if 0 < point < size]
        tops = self.layers("Slice", [blob], len(points) + 1, slice_param={"axis": axis, "slice_point": points})
        wanted = tops.pop(1 if begin else 0)
        self.layers("Silence", tops, 0)
        return wanted
