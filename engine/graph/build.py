"""Builds the graph of a NetParameter: chooses layers by phase, level and stage, connects blobs, infers shapes.

Building does not stop at the first error: a layer that cannot be built is reported, and the layers that depend on it
are skipped, so that `engine check` shows all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from engine import proto
from engine.config import NetConfig
from engine.config.phases import state_in
from engine.errors import MOST_ERRORS, ConfigError, shape_text, together
from engine.graph.connector import Connector
from engine.graph.graph import Graph
from engine.graph.model_parallel import take_part
from engine.layers.base import FIELDS_OF_FEW, Layer, Misfit, Shape
from engine.layers.data import Data
from engine.layers.fillers import complaint
from engine.layers.model_parallel import Part
from engine.layers.python import ModuleRefused
from engine.layers.registry import layer_type
from engine.layers.weighted import Weighted

ShapesOf = Callable[[proto.LayerParameter, str], list[Shape]]


def build(
    config: NetConfig,
    phase: int,
    *,
    level: int | None = None,
    stages: Iterable[str] | None = None,
    shapes_of: ShapesOf | None = None,
    before: Graph | None = None,
    strict: bool = True,
    parts: Mapping[str, Part] = MappingProxyType({}),
    to_look_at: bool = False,
) -> Graph:
    """Returns the graph of a net in one phase.

    Args:
        level, stages: by default those of the state that the net names.
        shapes_of: shapes_of(layer message, where) returns the shapes of the tops of a layer that is fed from a data
            source.
        before: the graph of this net in other shapes, whose layers hand over what they remember.
        strict: whether a layer that does not fit these shapes is an error; else it becomes a Misfit.
        to_look_at: whether the graph is only shown: then Python layers whose code may not run are no errors, see
            Graph.unshaped.

    Raises ConfigErrors with every error found.
    """
    graph = Graph(config.message.name or config.path, phase, force_backward=config.message.force_backward)
    errors: list[ConfigError] = []
    state = state_in(config, phase, stages)
    if level is not None:
        state.level = level
    connect = Connector(graph, config, state)
    layers = before.layers if before else []
    earlier = {layer.name: layer.misfit.before if layer.misfit else layer for layer in layers}
    for index, message in enumerate(config.message.layer):
        where = config.where(index)
        try:
            if not connect.keeps(message, where):
                continue
            own_phase = message.phase if message.HasField("phase") else phase
            layer = layer_type(message.type, message.name, where)(message, where, own_phase, net=config.message)
            if message.name in parts:
                take_part(cast(Weighted, layer), parts[message.name])
            if not connect.find_bottoms(layer, index):
                continue
            if layer.name in earlier:
                layer.succeed(earlier[layer.name])
            if connect.shapes_are_known(layer):
                try:
                    _build_layer(layer, connect, shapes_of, earlier.get(layer.name), strict)
                    connect.claim_name(layer)
                except ModuleRefused:
                    if not to_look_at:
                        raise
                    connect.leave_unshaped(layer)
            else:
                connect.leave_unshaped(layer)
            graph.layers.append(layer)
        except ConfigError as error:
            errors.append(error)
            connect.skip(message)
            if len(errors) > MOST_ERRORS:
                break
    if errors:
        raise together(errors)
    _complete(graph)
    return graph


def _complete(graph: Graph) -> None:
    """Sets what follows from all layers of a graph: its parameters and its outputs."""
    graph.all_params = [parameter for layer in graph.layers for parameter in layer.params]
    for parameter in graph.all_params:
        if parameter.owner:
            parameter.lr_mult, parameter.decay_mult = parameter.owner.lr_mult, parameter.owner.decay_mult
    consumed = {blob for layer in graph.layers for blob in layer.bottoms}
    outputs = [blob for layer in graph.layers for blob in layer.named_tops if blob not in consumed]
    graph.outputs = sorted(outputs, key=lambda blob: blob.name)  # as Caffe logs them


def _build_layer(
    layer: Layer, connect: Connector, shapes_of: ShapesOf | None, before: Layer | None, strict: bool
) -> None:
    """Gives a layer whose bottoms are known its shapes, tops, parameters and loss weights. before: this layer of the
    net in other shapes. Raises ConfigError."""
    _check_message(layer)
    try:
        _infer(layer, connect, shapes_of, before)
    except ConfigError as error:
        if strict or before is None or not _may_misfit(layer, before):
            raise
        layer.misfit = Misfit(error, before)
        connect.take_back_tops(layer)
        layer.tops = connect.make_tops(layer, [top.shape for top in before.tops])
        layer.params = [replace(parameter, owner=None) for parameter in before.params]
    _param_specs(layer, connect)
    given = list(layer.message.loss_weight)
    if given and len(given) != len(layer.tops):
        raise layer.error(
            f"loss_weight is given {len(given)} times, expected once for each of its {len(layer.tops)} tops"
        )
    layer.loss_weights = given or [1.0 if layer.is_loss and i == 0 else 0.0 for i in range(len(layer.tops))]


def _may_misfit(layer: Layer, before: Layer) -> bool:
    """Tells whether a layer can become a Misfit, whose tops keep their shapes: not a source, not a layer that works in
    place, not one with parts on other ranks."""
    own = set(layer.message.top).isdisjoint(layer.message.bottom) and before.message.top == layer.message.top
    return own and bool(layer.bottoms) and layer.part is None


def _infer(layer: Layer, connect: Connector, shapes_of: ShapesOf | None, before: Layer | None) -> None:
    """Gives a layer its tops and parameters. Raises ConfigError."""
    if isinstance(layer, Data):
        if shapes_of is None:
            raise layer.error("its data source is not open")
        layer.source_shapes = shapes_of(layer.message, layer.where)
    with layer.arithmetic():
        try:
            shapes = layer.infer()
        except ConfigError as error:
            raise connect.with_hint(layer, error) from None
        layer.tops = connect.make_tops(layer, shapes)
        for top in layer.tops:
            layer.check_blob(f"top '{top.name}'", top.shape)
        layer.params = layer.make_params()
        for index, parameter in enumerate(layer.params):
            layer.check_blob(f"parameter {index}", parameter.shape)
            if parameter.filler is not None and (wrong := complaint(parameter.shape, parameter.filler)):
                raise layer.error(f"parameter {index}: {wrong}")
    if layer.part:
        for parameter in layer.params:
            parameter.part, parameter.parts = layer.part.index, layer.part.count
            parameter.shape = (parameter.shape[0] // layer.part.count, *parameter.shape[1:])
    if before:
        _check_parameters(layer, before)


def _check_parameters(layer: Layer, before: Layer) -> None:
    """Raises ConfigError if a parameter would have another shape than before: its values are to stay."""
    for index, (here, there) in enumerate(zip(layer.params, before.params, strict=False)):
        if tuple(here.shape) == tuple(there.shape) or (there.permissive and here.count == there.count):
            continue
        raise ConfigError(
            f"layer '{layer.name}', parameter {index}: for these inputs it would be {shape_text(here.shape)}, but it "
            f"is {shape_text(there.shape)}; behind a global Pooling it has one size",
            layer.where,
        )


def _check_message(layer: Layer) -> None:
    """Checks how many bottoms, tops and propagate_down flags a layer has, and that its type reads the given fields.
    Raises ConfigError."""
    for what, names, (least, most) in (
        ("bottom", layer.message.bottom, layer.bottom_range),
        ("top", layer.message.top, layer.top_range),
    ):
        if len(names) < least or (most is not None and len(names) > most):
            wanted = str(least) if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            raise layer.error(f"expected {wanted} {what} blob{'' if wanted == '1' else 's'}, got {len(names)}")
    flags, bottoms = len(layer.message.propagate_down), len(layer.message.bottom)
    if flags not in (0, bottoms):
        raise layer.error(f"propagate_down is given {flags} times, expected once for each of its {bottoms} bottoms")
    for param, readers in FIELDS_OF_FEW.items():
        for field, value in getattr(layer.message, param).ListFields():
            idle = field.name in readers and field.name not in layer.own_fields
            if idle and not (field.has_presence and value == field.default_value):
                raise layer.error(f"{field.name} is for {readers[field.name]}; take it out of {param}")


def _param_specs(layer: Layer, connect: Connector) -> None:
    """Gives the parameters of a layer what its `param` entries say: multipliers, and with whom they are shared. Raises
    ConfigError."""
    specs = layer.message.param
    if len(specs) > len(layer.params):
        raise layer.error(f"{len(specs)} param entries for {len(layer.params)} parameter blobs")
    for index, parameter in enumerate(layer.params):
        parameter.layer, parameter.index, parameter.where = layer.name, index, layer.where
        if index >= len(specs):
            continue
        spec = specs[index]
        parameter.lr_mult, parameter.decay_mult = spec.lr_mult, spec.decay_mult
        parameter.shared_name, parameter.permissive = spec.name, spec.share_mode == 1
        if spec.name:
            connect.share(layer, parameter)
            connect.multiply(layer, parameter, spec)
