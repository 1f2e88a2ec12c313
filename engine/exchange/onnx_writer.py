"""Makes an ONNX graph node by node: the functions in engine/exchange/to_onnx/ write the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.exchange.onnx_file import IR_VERSION, OPSET, import_onnx_package
from engine.exchange.to_onnx.registry import Inexpressible
from engine.layers.base import Blob, Layer, Parameter

if TYPE_CHECKING:
    from engine.exchange.onnx_file import NodeProto, TensorProto, ValueInfoProto

Dims = tuple["int | None", ...]  # None: the axis grows with the batch
BATCH = "batch"  # the name that such an axis has in the file


class Writer:
    """An ONNX graph under construction.

    A value is the name of what a node makes. In place of a value, op() takes arrays and numbers, too, which become
    constants. A Caffe layer that works in place makes a new value: only one version of the blob can have its name.

    Args:
        dims: returns the shape of a blob.
        weights: the values of parameters that are not shared, and of the owners of those that are.
        named: the version of a blob that has its name, by that name.
    Attributes:
        values: the value of each blob.
        readers: the layers that read a blob.
        planes: height and width of the plane that places of maxima count in, by the value of the places.
    """

    def __init__(
        self, dims: Callable[[Blob], Dims], weights: Mapping[Parameter, np.ndarray], named: Mapping[str, Blob]
    ):
        self.dims, self._weights, self._named = dims, weights, named
        self.values: dict[Blob, str] = {}
        self.readers: Mapping[Blob, Sequence[Layer]] = {}
        self.planes: dict[str, Sequence[int]] = {}
        self.onnx = import_onnx_package()
        self._layer: Layer | None = None  # the one that is being written
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._names = set(named)  # names that are taken; those of blobs are from the start
        self._folded: dict[Layer, list[np.ndarray]] = {}  # parameters that others are folded into

    # The following methods are for the functions of layers, in engine/exchange/to_onnx/.

    def op(self, type: str, *inputs: str | np.ndarray | float | Sequence[int], **attributes: Any) -> str:
        """Adds a node of one output; returns that.

        Args:
            type: the operator.
            inputs: values; arrays and numbers become constants.
        """
        return self.ops(type, 1, *inputs, **attributes)[0]

    def ops(self, type: str, count: int, *inputs: str | np.ndarray | float | Sequence[int], **attributes: Any) -> list:
        """Adds a node of `count` outputs; returns these. The arguments are those of op()."""
        assert self._layer is not None
        names = [each if isinstance(each, str) else self.constant(np.asarray(each)) for each in inputs]
        node = self._unique(f"{self._layer.name}/{type}")
        outputs = [node if i == 0 else self._unique(f"{node}:{i}") for i in range(count)]
        self._nodes.append(self.onnx.helper.make_node(type, names, outputs, name=node, **attributes))
        return outputs

    def second(self, value: str) -> str:
        """Gives the last node, whose output is `value`, a second output; returns that."""
        name = self._unique(f"{value}:1")
        self._nodes[-1].output.append(name)
        return name

    def name(self, wanted: str) -> str:
        """Returns a name that nothing else in the file has, for values of graphs within the graph."""
        assert self._layer is not None
        return self._unique(f"{self._layer.name}/{wanted}")

    def constant(self, values: np.ndarray, name: str = "") -> str:
        """Adds a constant; returns its value. Floats become float32, whole numbers int64, and truth values stay."""
        dtype = values.dtype if values.dtype == bool else np.float32 if values.dtype.kind == "f" else np.int64
        assert self._layer is not None
        name = self._unique(name or f"{self._layer.name}/constant")
        self._initializers[name] = self.onnx.numpy_helper.from_array(np.asarray(values, dtype, order="C"), name)
        return name

    def arrays(self, layer: Layer) -> list[np.ndarray]:
        """Returns the parameters of a layer in Caffe's shapes, with the layers that were folded into them."""
        if layer in self._folded:
            return self._folded[layer]
        return [self._weights[p.owner or p].reshape(p.shape) for p in layer.params]

    def fold(self, layer: Layer, arrays: list[np.ndarray]) -> None:
        """Replaces the parameters of a layer, to fold the layer that follows into them."""
        self._folded[layer] = arrays

    def params(self, layer: Layer) -> list[str]:
        """Returns the values of a layer's parameters. Layers that share a parameter share its value."""
        if layer in self._folded:
            # The usual name stays free: a layer that shares the parameters, but is not folded, needs it for them.
            return [self.constant(array, f"{layer.name}/folded_{i}") for i, array in enumerate(self._folded[layer])]
        found = []
        for parameter, array in zip(layer.params, self.arrays(layer), strict=True):
            owner = parameter.owner or parameter
            name = f"{owner.layer}.{owner.index}"
            if owner.shape != parameter.shape:
                name = f"{parameter.layer}.{parameter.index}"
            found.append(name if name in self._initializers else self.constant(array, name))
        return found

    def target(self, dims: Sequence[int | None]) -> np.ndarray:
        """Returns the shape input of a Reshape to `dims`. Raises Inexpressible if several axes grow with the batch."""
        if list(dims).count(None) > 1:
            raise Inexpressible(f"more than one axis of {list(dims)} grows with the batch")
        return np.array([-1 if dim is None else dim for dim in dims], np.int64)

    def reshape(self, value: str, dims: Sequence[int | None]) -> str:
        return self.op("Reshape", value, self.target(dims))

    # The following methods are for the export itself.

    def layer(self, layer: Layer, write: Callable[..., str | Sequence[str]]) -> None:
        """Writes one layer. Its last node gets the layer's name, its tops the names of the blobs.

        Args:
            write: the function of the layer's type, as Export in to_onnx/registry.py.
        """
        self._layer = layer
        first = len(self._nodes)
        found = write(self, layer, *(self.values[blob] for blob in layer.bottoms))
        tops = [found] if isinstance(found, str) else list(found)
        for blob, value in zip(layer.tops, tops):
            self.values[blob] = self._renamed(value, blob, first)
        if len(self._nodes) > first:
            self._nodes[-1].name = layer.name

    def alias(self, blob: Blob, value: str) -> None:
        """Sets the value of a blob whose layer writes no node."""
        self.values[blob] = value

    def input(self, blob: Blob) -> None:
        """Makes a blob an input, of its own name."""
        self.values[blob] = blob.name
        self._inputs.append(self._info(blob.name, blob))

    def output(self, blob: Blob) -> str:
        """Makes a blob an output, of its own name unless another version has that; returns the output's name."""
        value = self.values[blob]
        name = blob.name if self._has_its_name(blob) else self._unique(f"{blob.name}/output")
        if value != name:
            self._nodes.append(self.onnx.helper.make_node("Identity", [value], [name], name=f"{name}/output"))
        self._outputs.append(self._info(name, blob))
        return name

    def model(self, name: str) -> Any:
        """Returns the model. Weights that no node reads are left out."""
        helper = self.onnx.helper
        used = {value for node in self._nodes for value in _read(node)} | {each.name for each in self._outputs}
        weights = [tensor for each, tensor in self._initializers.items() if each in used]
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="engine", opset_imports=opsets, ir_version=IR_VERSION)

    def _info(self, name: str, blob: Blob) -> Any:
        """Returns the ValueInfoProto of a blob that is an input or output."""
        dims = [BATCH if dim is None else dim for dim in self.dims(blob)]
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, dims)

    def _unique(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._names:
            name, count = f"{wanted}_{count}", count + 1
        self._names.add(name)
        return name

    def _has_its_name(self, blob: Blob) -> bool:
        return self._named.get(blob.name) is blob

    def _name_of(self, blob: Blob) -> str:
        """Returns a name for the value that a layer makes of a blob: the blob's own, if this version has it."""
        if self._has_its_name(blob):
            return blob.name
        return self._unique(f"{blob.name}/{'after' if self._named.get(blob.name) in self.values else 'before'}")

    def _renamed(self, value: str, blob: Blob, first: int) -> str:
        """Renames a value after its blob; returns its new name.

        It keeps its name if no node from index `first` on made it, or if the blob's name is automatic.
        """
        makers = [(node, i) for node in self._nodes[first:] for i, out in enumerate(node.output) if out == value]
        if not makers or blob.name.startswith("(automatic)"):
            return value
        name = self._name_of(blob)
        if value in self.planes:
            self.planes[name] = self.planes.pop(value)
        for node in self._nodes[first:]:
            for i, each in enumerate(node.input):
                if each == value:
                    node.input[i] = name
        node, i = makers[0]
        node.output[i] = name
        return name


def _read(node: NodeProto) -> list[str]:
    """Returns all values that a node reads, also in the graphs within it."""
    inner = [each for attribute in node.attribute for part in attribute.g.node for each in _read(part)]
    return [*node.input, *inner]
