"""Makes the graph of a net as it is deployed: phase TEST, fed by its inputs, without labels, losses and measures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine import proto
from engine.config import NetConfig
from engine.config.phases import kept, kept_layers, state_in
from engine.data.source_shapes import SourceShapes
from engine.errors import ConfigError, EngineError, WeightsError, shape_text
from engine.graph.build import build
from engine.graph.graph import Graph, readers_among
from engine.layers.base import Blob, Layer, Parameter, Shape
from engine.layers.data import Data
from engine.layers.registry import layer_types
from engine.weights import intel, read_caffemodel
from engine.weights.shared import with_gaps


@dataclass
class DeployGraph:
    """A net as it is deployed.

    Attributes:
        layers: in the order in which they run, without Input layers.
        doubled: for each blob, the same blob in a net of twice the batch; empty if the net holds its batch fixed.
        refused: layers that deploy_graph() was told to refuse. They, and what depends on them, are not in `layers`.
        notes: on what was left out or changed.
    """

    name: str
    layers: list[Layer] = field(default_factory=list)
    inputs: list[Blob] = field(default_factory=list)
    outputs: list[Blob] = field(default_factory=list)
    doubled: Mapping[Blob, Blob] = field(default_factory=dict)
    refused: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def dims(self, blob: Blob) -> tuple[int | None, ...]:
        """Returns the shape of a blob, with None for each axis that grows with the batch."""
        other = self.doubled.get(blob, blob).shape
        return tuple(size if size == twice else None for size, twice in zip(blob.shape, other, strict=True))

    def readers(self) -> dict[Blob, list[Layer]]:
        return readers_among(self.layers)


def deploy_graph(config: NetConfig, refused: Callable[[Layer], bool] = lambda layer: False) -> DeployGraph:
    """Returns the deployed graph of a net.

    Args:
        refused: returns whether a layer cannot be used. Layers that depend on it are left out, too.
    Raises:
        ConfigError: the net does not fit together, or has nothing but losses and measures.
    """
    fed = _fed_by_inputs(config)
    graph = build(fed, proto.TEST, to_look_at=True)
    result = DeployGraph(graph.name, notes=list(fed.notes))
    result.doubled = _doubled(fed, graph, result.notes)
    graph, result.doubled = _with_probabilities(graph, result)
    _choose(graph, refused, result)
    if not result.layers and not result.refused:
        raise ConfigError("nothing of the net is left without its losses and measures", config.path)
    return result


def _fed_by_inputs(config: NetConfig) -> NetConfig:
    """Returns the net with an Input layer of the same shapes in place of each data layer and DummyData."""
    message, notes = proto.NetParameter(), list(config.notes)
    message.CopyFrom(config.message)
    shapes_of = SourceShapes(message, proto.TEST, notes.append)
    state = state_in(config, proto.TEST)
    for index, layer in enumerate(message.layer):
        cls = layer_types().get(layer.type)
        if cls is not None and (issubclass(cls, Data) or layer.type == "DummyData"):
            where = config.where(index)
            stays = kept(layer, state, where)
            shapes = _shapes(layer, where, shapes_of) if stays else [(1,)]  # any shape: the build leaves this layer out
            fed = proto.LayerParameter(name=layer.name, type="Input", top=layer.top)
            fed.include.extend(layer.include)
            fed.exclude.extend(layer.exclude)
            for shape in shapes or ():
                fed.input_param.shape.add(dim=shape)
            layer.CopyFrom(fed)
    changed = config.with_message(message)
    changed.notes = notes
    return changed


def _shapes(layer: proto.LayerParameter, where: str, shapes_of: SourceShapes) -> list[Shape]:
    """Returns the shapes of the tops of a data layer or DummyData."""
    if layer.type == "DummyData":
        dummy = layer_types()["DummyData"](layer, where, proto.TEST)
        return dummy.infer()
    return shapes_of(layer, where)


def _doubled(config: NetConfig, graph: Graph, notes: list[str]) -> dict[Blob, Blob]:
    """Returns for each blob the same blob in the net of twice the batch, whose shape shows what grows with the batch.

    Returns {}, and adds a note, if the net holds its batch fixed.
    """
    batch = graph.batch_size
    message = proto.NetParameter()
    message.CopyFrom(config.message)
    for layer in message.layer:
        for shape in layer.input_param.shape if layer.type == "Input" else ():
            if shape.dim and shape.dim[0] == batch:
                shape.dim[0] *= 2
    try:
        other = build(config.with_message(message), proto.TEST, to_look_at=True)
        shapes = [[p.shape for p in each.all_params] for each in (graph, other)]
        pairs = [
            (blob, twin)
            for layer, same in zip(graph.layers, other.layers, strict=True)
            for blob, twin in zip(layer.tops, same.tops, strict=True)
        ]
        fits = all(len(blob.shape) == len(twin.shape) for blob, twin in pairs)
        if shapes[0] == shapes[1] and fits:
            return dict(pairs)
        why = "its weights or axes depend on the batch"
    except EngineError as error:
        why = str(error).splitlines()[0]
    notes.append(f"{config.path}: the net holds its batch of {batch} fixed: {why}")
    return {}


def _with_probabilities(graph: Graph, result: DeployGraph) -> tuple[Graph, Mapping[Blob, Blob]]:
    """Puts a Softmax or Sigmoid in place of each loss that computes one, unless the net has such a layer already.

    Returns the graph, and `doubled` with the new tops.
    """
    doubled, named = dict(result.doubled), set(graph.blobs())
    layers: list[Layer] = []
    for layer in graph.layers:
        kind = layer.probabilities
        twins = [each for each in graph.layers if each.type == kind and each.bottoms == layer.bottoms[:1]]
        if not (layer.is_loss and kind) or twins or layer in graph.unshaped:
            layers.append(layer)
            continue
        name = layer.message.top[1] if len(layer.message.top) > 1 else _free("prob", layer.name, named)
        named.add(name)
        message = proto.LayerParameter(name=layer.name, type=kind, bottom=layer.message.bottom[:1], top=[name])
        if kind == "Softmax":
            message.softmax_param.axis = layer.asked_axis
        other = layer_types()[kind](message, layer.where, proto.TEST, net=layer.net)
        other.bottoms = layer.bottoms[:1]
        other.tops = layer.tops[1:2] if len(layer.message.top) > 1 else [Blob(name, layer.bottoms[0].shape)]
        if layer.bottoms[0] in doubled:
            doubled[other.tops[0]] = Blob(name, doubled[layer.bottoms[0]].shape)
        result.notes.append(f"layer '{layer.name}' ({layer.type}) becomes {kind}: top '{name}'")
        layers.append(other)
    return Graph(graph.name, graph.phase, layers, all_params=graph.all_params, unshaped=graph.unshaped), doubled


def _free(wanted: str, layer: str, named: Collection[str]) -> str:
    return wanted if wanted not in named else f"{layer}/{wanted}"


def _measures(graph: Graph) -> set[Layer]:
    """Returns the layers that tell how good the others are: losses, measures, layers without tops, and layers with a
    loss_weight that only such layers read."""
    read: set[Blob] = set()  # by other layers
    found: set[Layer] = set()
    for layer in reversed(graph.layers):
        weighted = any(layer.message.loss_weight) and not read & set(layer.tops)
        if layer.is_loss or layer.is_measure or weighted or not layer.tops:
            found.add(layer)
        else:
            read.update(layer.bottoms)
    return found


def _choose(graph: Graph, refused: Callable[[Layer], bool], result: DeployGraph) -> None:
    """Sets the layers, inputs, outputs and refused layers of `result`.

    Outputs are tops of the layers that stay: those that no layer reads, predictions that only measures read, and those
    that refused layers read. Layers that no output depends on do not stay either.
    """
    gone: set[Blob] = set()  # tops of layers that do not stay
    learned: set[Blob] = set()  # blobs that depend on a parameter: predictions, never labels
    ends: list[Blob] = []  # predictions that measures read
    cut: list[Blob] = []  # blobs that refused layers, and layers that depend on them, read
    staying: list[Layer] = []
    made: set[Blob] = set()  # tops of layers that stay, without inputs
    measures = _measures(graph)
    for layer in graph.layers:
        if layer.params or learned & set(layer.bottoms):
            learned.update(layer.tops)
        if layer in measures:
            gone.update(layer.tops)
            ends += [blob for blob in layer.bottoms if blob in learned and blob not in gone]
            if layer.type != "Silence":
                result.notes.append(f"layer '{layer.name}' ({layer.type}) is left out")
        elif layer.type != "Input" and (gone & set(layer.bottoms) or layer in graph.unshaped or refused(layer)):
            cut += [blob for blob in layer.bottoms if blob in made and blob not in gone]
            if not gone & set(layer.bottoms) and refused(layer):
                result.refused.append(layer)
            gone.update(layer.tops)
        else:
            staying.append(layer)
            if layer.type != "Input":
                made.update(layer.tops)
    read = {blob for layer in staying for blob in layer.bottoms}
    read_by_others = {blob for layer in graph.layers if layer not in staying for blob in layer.bottoms}
    free = [top for layer in staying if layer.type != "Input" for top in layer.tops if top not in read | read_by_others]
    outputs = dict.fromkeys([*free, *cut, *(blob for blob in ends if blob not in read)])
    order = {top: i for i, layer in enumerate(staying) for top in layer.tops}
    result.outputs = sorted(outputs, key=lambda blob: order[blob])
    wanted = set(result.outputs)
    for layer in reversed(staying):
        if wanted & set(layer.tops):
            wanted.update(layer.bottoms)
            result.layers.insert(0, layer)
    result.inputs = [top for layer in result.layers if layer.type == "Input" for top in layer.tops if top in wanted]
    result.layers = [layer for layer in result.layers if layer.type != "Input"]


def read_weights(graph: DeployGraph, config: NetConfig, path: str) -> dict[Parameter, np.ndarray]:
    """Reads the values of the parameters of a graph's layers. Shared parameters are there once, as their owner.

    Raises WeightsError if the caffemodel `path` lacks a parameter or has one of another shape.
    """
    of_phase = [config.message.layer[index] for index in kept_layers(config, proto.TEST)]
    blobs = intel.separated(of_phase, read_caffemodel(path), path)
    found: dict[Parameter, np.ndarray] = {}
    for layer in graph.layers:
        stored, shares = blobs.get(layer.name, ()), [parameter.owner is not None for parameter in layer.params]
        if not stored and not all(shares):
            raise WeightsError(f"layer '{layer.name}': the file has no such layer, the net {len(shares)}", path)
        for parameter, values in zip(layer.params, with_gaps(layer.name, stored, shares, path), strict=True):
            owner = parameter.owner or parameter
            if values is None:
                continue
            if parameter.unread and values.size != parameter.count:
                values = np.zeros(parameter.shape, np.float32)
            if values.size != parameter.count or _squeezed(values.shape) != _squeezed(parameter.shape):
                raise WeightsError(
                    f"layer '{layer.name}', blob {parameter.index}: the file has {shape_text(values.shape)}, the net "
                    f"{shape_text(parameter.shape)}",
                    path,
                )
            found[owner] = values.reshape(parameter.shape)  # the last layer that shares it wins, as in Caffe
    for layer in graph.layers:
        for parameter in layer.params:
            if (parameter.owner or parameter) not in found:
                raise WeightsError(f"layer '{layer.name}', blob {parameter.index}: the file does not have it", path)
    return found


def _squeezed(shape: Shape) -> Shape:
    """Returns a shape without axes of 1, by which files before 2015 fill every shape up to four axes."""
    return tuple(size for size in shape if size != 1)
