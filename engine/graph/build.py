"""Builds the graph of a NetParameter: layers chosen by phase, level and stage, blobs connected, shapes inferred.

Building does not stop at the first error: a layer that cannot be built is reported and the layers that depend on it are
skipped, so that `engine check` shows all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from engine import proto
from engine.config import NetConfig
from engine.config.phases import unknown_stages
from engine.config.suggestions import suggestion
from engine.errors import MOST_ERRORS, ConfigError, shape_text, together
from engine.graph.model_parallel import take_part
from engine.layers.base import Blob, Layer, Misfit, Parameter, Shape
from engine.layers.data import Data
from engine.layers.fillers import complaint
from engine.layers.model_parallel import Part
from engine.layers.python import ModuleRefused
from engine.layers.registry import layer_type
from engine.layers.weighted import Weighted

TRAIN, TEST = 0, 1
PHASES = {TRAIN: "TRAIN", TEST: "TEST"}
ShapesOf = Callable[[proto.LayerParameter, str], list[Shape]]


@dataclass(eq=False)
class Graph:
    """Layers in execution order. `outputs` are the named blobs that nobody reads, sorted. `all_params` are the
    parameters of every layer in the order of the file, which is that of snapshots: rewrites of `layers` leave it alone.
    `fused` are the layers that others compute within their own op. `unshaped` are the layers, in a graph to look at,
    whose shapes are not known: their tops, and what follows, have none."""

    name: str
    phase: int
    layers: list[Layer] = field(default_factory=list)
    outputs: list[Blob] = field(default_factory=list)
    all_params: list[Parameter] = field(default_factory=list)
    force_backward: bool = False
    fused: dict[Layer, list[Layer]] = field(default_factory=dict)
    unshaped: list[Layer] = field(default_factory=list)

    @property
    def params(self) -> list[Parameter]:
        """Those that belong to their layer, or to several of which it is the first."""
        return [parameter for parameter in self.all_params if parameter.owner is None]

    def readers(self) -> dict[Blob, list[Layer]]:
        """The layers that read each blob, in their order; twice where two bottoms are that blob."""
        found: dict[Blob, list[Layer]] = {}
        for layer in self.layers:
            for blob in layer.bottoms:
                found.setdefault(blob, []).append(layer)
        return found

    @property
    def batch_size(self) -> int:
        """Samples in a pass, of which the first data layer gives rows, else the first other source; 0 without one."""
        sources = [layer for layer in self.layers if layer.tops and not (layer.bottoms or layer.params)]
        sources = [layer for layer in sources if not layer.rows_are_steps]
        sources.sort(key=lambda layer: not isinstance(layer, Data))
        return next((layer.tops[0].shape[0] for layer in sources if layer.tops[0].shape), 0)

    @property
    def recurrent(self) -> list[Layer]:
        """The layers that learn from sequences which go on from batch to batch."""
        return [layer for layer in self.layers if layer.goes_on and layer.params]

    @property
    def trains(self) -> bool:
        """Whether there is a backward where nobody says otherwise."""
        return self.phase == TRAIN or self.force_backward

    def freeze(self, layers: Collection[str]) -> None:
        """The parameters of these layers do not learn."""
        for parameter in self.all_params:
            parameter.frozen |= parameter.layer in layers

    def blobs(self) -> dict[str, Blob]:
        """The last version of every named blob."""
        return {top.name: top for layer in self.layers for top in layer.tops}


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
    """The graph of a net in one phase. level, stages: by default those of the state that the net names.

    `shapes_of(layer message, where)` gives the shapes of the tops of layers that are fed from data sources. `before`:
    this net in other shapes, whose layers hand over what they remember. `strict`: a layer that does not fit these is an
    error; else it is a Misfit. `to_look_at`: Python layers whose code may not run are no errors, see Graph.unshaped.
    Raises ConfigErrors with every error found.
    """
    graph = Graph(config.message.name or config.path, phase, force_backward=config.message.force_backward)
    errors: list[ConfigError] = []
    state = config.message.state
    level, asked = state.level if level is None else level, set(state.stage if stages is None else stages)
    connect = _Connector(
        graph, config, lambda each, where, more=(): kept(each, phase, level, asked.union(more), where), asked
    )
    layers = before.layers if before else []
    earlier = {layer.name: layer.misfit.before if layer.misfit else layer for layer in layers}
    for index, message in enumerate(config.message.layer):
        where = config.where(index)
        try:
            if not kept(message, phase, level, asked, where):
                continue
            own_phase = message.phase if message.HasField("phase") else phase
            layer = layer_type(message.type, message.name, where)(message, where, own_phase, net=config.message)
            if message.name in parts:
                take_part(cast(Weighted, layer), parts[message.name])
            if not connect.bottoms(layer, index):
                continue
            if layer.name in earlier:
                layer.succeed(earlier[layer.name])
            if connect.shapes_are_known(layer):
                try:
                    _build_layer(layer, connect, shapes_of, earlier.get(layer.name), strict)
                    connect.name(layer)
                except ModuleRefused:
                    if not to_look_at:
                        raise
                    connect.without_shapes(layer)
            else:
                connect.without_shapes(layer)
            graph.layers.append(layer)
        except ConfigError as error:
            errors.append(error)
            connect.broken(message)
            if len(errors) > MOST_ERRORS:
                break
    if errors:
        raise together(errors)
    graph.all_params = [parameter for layer in graph.layers for parameter in layer.params]
    for parameter in graph.all_params:
        if parameter.owner:
            parameter.lr_mult, parameter.decay_mult = parameter.owner.lr_mult, parameter.owner.decay_mult
    consumed = {blob for layer in graph.layers for blob in layer.bottoms}
    outputs = [blob for layer in graph.layers for blob in layer.named_tops if blob not in consumed]
    graph.outputs = sorted(outputs, key=lambda blob: blob.name)  # as Caffe logs them
    return graph


def kept(message: proto.LayerParameter, phase: int, level: int, stages: set[str], where: str) -> bool:
    """Whether a layer's include and exclude rules keep it. Raises ConfigError for a layer that has both."""
    if message.include and message.exclude:
        raise ConfigError(f"layer '{message.name}': has both include and exclude rules; use one of them", where)

    def matches(rule: proto.NetStateRule) -> bool:
        return not (
            (rule.HasField("phase") and rule.phase != phase)
            or (rule.HasField("min_level") and level < rule.min_level)
            or (rule.HasField("max_level") and level > rule.max_level)
            or not set(rule.stage) <= stages
            or set(rule.not_stage) & stages
        )

    if message.include:
        return any(matches(rule) for rule in message.include)
    return not any(matches(rule) for rule in message.exclude)


def kept_layers(config: NetConfig, phase: int | None = None) -> list[int]:
    """The indices of the layers that the state keeps which the net itself names, or another phase with its level and
    stages. Raises ConfigError."""
    state, layers = config.message.state, config.message.layer
    phase, stages = state.phase if phase is None else phase, set(state.stage)
    return [i for i in range(len(layers)) if kept(layers[i], phase, state.level, stages, config.where(i))]


def _build_layer(
    layer: Layer, connect: _Connector, shapes_of: ShapesOf | None, before: Layer | None, strict: bool
) -> None:
    """Shapes, tops, parameters and loss weights of one layer whose bottoms are known. before: it in other shapes."""
    _check_message(layer)
    try:
        _infer(layer, connect, shapes_of, before)
    except ConfigError as error:
        if strict or before is None or not _may_misfit(layer, before):
            raise
        layer.misfit = Misfit(error, before)
        connect.forget(layer)
        layer.tops = connect.tops(layer, [top.shape for top in before.tops])
        layer.params = [replace(parameter, owner=None) for parameter in before.params]
    _param_specs(layer, connect)
    given = list(layer.message.loss_weight)
    if given and len(given) != len(layer.tops):
        raise layer.error(
            f"loss_weight is given {len(given)} times, expected once for each of its {len(layer.tops)} tops"
        )
    layer.loss_weights = given or [1.0 if layer.is_loss and i == 0 else 0.0 for i in range(len(layer.tops))]


def _may_misfit(layer: Layer, before: Layer) -> bool:
    """Whether its tops can keep their shapes: not those of a source, or in place, or with parts on other ranks."""
    own = set(layer.message.top).isdisjoint(layer.message.bottom) and before.message.top == layer.message.top
    return own and bool(layer.bottoms) and layer.part is None


def _infer(layer: Layer, connect: _Connector, shapes_of: ShapesOf | None, before: Layer | None) -> None:
    """Tops and parameters."""
    if isinstance(layer, Data):
        if shapes_of is None:
            raise layer.error("its data source is not open")
        layer.source_shapes = shapes_of(layer.message, layer.where)
    with layer.arithmetic():
        try:
            shapes = layer.infer()
        except ConfigError as error:
            raise connect.explained(layer, error) from None
        layer.tops = connect.tops(layer, shapes)
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
    """Raises ConfigError where a parameter, whose values stay, would have another shape than before."""
    for index, (here, there) in enumerate(zip(layer.params, before.params, strict=False)):
        if tuple(here.shape) == tuple(there.shape) or (there.permissive and here.count == there.count):
            continue
        raise ConfigError(
            f"layer '{layer.name}', parameter {index}: for these inputs it would be {shape_text(here.shape)}, but it "
            f"is {shape_text(there.shape)}; behind a global Pooling it has one size",
            layer.where,
        )


def _check_message(layer: Layer) -> None:
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
    for name in ("positive_weight", "negative_weight"):
        if getattr(layer.message.loss_param, name) and not layer.takes_label_weights:
            raise layer.error(f"{name} is for SigmoidCrossEntropyLoss only; take it out of loss_param")


def _param_specs(layer: Layer, connect: _Connector) -> None:
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


class _Connector:
    """Which blob a name means at this point of the file, and who owns a shared parameter."""

    def __init__(self, graph: Graph, config: NetConfig, keeps: Callable[..., bool], stages: set[str]):
        """keeps(layer message, where, more=()): whether the graph, which has these stages, has that layer, or would
        with more stages."""
        self.graph, self.config, self.keeps, self.stages = graph, config, keeps, stages
        self.current: dict[str, Blob] = {}
        self.unknown: set[str] = set()  # tops of layers that could not be built
        self.unshaped: set[Blob] = set()
        self.owners: dict[str, Parameter] = {}
        self.makers: dict[str, Layer] = {}  # of tops: the first of each
        self.by_name: dict[tuple[str, bool], Layer] = {}  # (name, whether it reads data): with weights, or with data
        self.multipliers: dict[tuple[Parameter, str], str] = {}  # which layer has given one, to an owner

    def name(self, layer: Layer) -> None:
        """Raises ConfigError for the name of another layer, where blobs of weights, or data, go by it."""
        is_data = isinstance(layer, Data)
        if not (layer.params or is_data):
            return
        first = self.by_name.setdefault((layer.name, is_data), layer)
        if first is not layer:
            raise layer.error(
                f"has the name of the layer at {first.where}; weights and data go by names: give it another"
            )

    def bottoms(self, layer: Layer, index: int) -> bool:
        """Finds the layer's bottoms; False when one depends on a layer already reported."""
        if any(name in self.unknown for name in layer.message.bottom):
            self.broken(layer.message)
            return False
        for name in layer.message.bottom:
            if name not in self.current:
                raise self._missing(layer, index, name)
            layer.bottoms.append(self.current[name])
        return True

    def tops(self, layer: Layer, shapes: list[Shape]) -> list[Blob]:
        names = list(layer.message.top)
        anonymous = [f"(automatic) {layer.name}"] * (len(shapes) - len(names))
        blobs = []
        for name, shape in zip(names + anonymous, shapes, strict=True):
            if name in self.current and name not in layer.message.bottom:
                raise layer.error(self._twice(name))
            if names.count(name) > 1:
                raise layer.error(f"has the top '{name}' twice; give each a name of its own")
            blobs.append(Blob(name, tuple(shape)))
        self.current.update({blob.name: blob for blob in blobs[: len(names)]})
        self._keep_maker(layer)
        return blobs

    def forget(self, layer: Layer) -> None:
        """Takes back what tops() has done for a layer that works on none in place."""
        for top in layer.tops:
            self.current.pop(top.name, None)

    def shapes_are_known(self, layer: Layer) -> bool:
        """Of its bottoms."""
        return self.unshaped.isdisjoint(layer.bottoms)

    def without_shapes(self, layer: Layer) -> None:
        layer.tops = [Blob(name, ()) for name in layer.message.top]
        self.graph.unshaped.append(layer)
        self.unshaped.update(layer.tops)
        self.current.update({top.name: top for top in layer.tops})
        self._keep_maker(layer)

    def explained(self, layer: Layer, error: ConfigError) -> ConfigError:
        """A layer's error, with a hint where it reads what a data layer gives beside the pictures."""
        first = layer.bottoms[0] if len(layer.bottoms) == 1 else None
        maker = self.makers.get(first.name) if first else None
        if not (first and isinstance(maker, Data) and first in maker.tops[1:2]):
            return error
        pictures = maker.tops[0]
        if len(pictures.shape) <= len(first.shape):
            return error
        return ConfigError(
            f"{error}; its bottom '{first.name}' is the second top of layer '{maker.name}' ({maker.where}), whose "
            f"first, '{pictures.name}', has the pictures: are its tops swapped?"
        )

    def _keep_maker(self, layer: Layer) -> None:
        for name in layer.message.top:
            self.makers.setdefault(name, layer)

    def broken(self, message: proto.LayerParameter) -> None:
        self.unknown.update(message.top)

    def share(self, layer: Layer, parameter: Parameter) -> None:
        owner = self.owners.setdefault(parameter.shared_name, parameter)
        if owner is parameter:
            return
        fits = owner.count == parameter.count if parameter.permissive else owner.shape == parameter.shape
        if not fits:
            raise layer.error(
                f"parameter '{parameter.shared_name}' is shared with layer '{owner.layer}' but has another shape: "
                f"expected {owner.shape}, got {parameter.shape}"
            )
        parameter.owner = owner
        owner.row_major |= (owner.dims, owner.transposed) != (parameter.dims, parameter.transposed)

    def multiply(self, layer: Layer, parameter: Parameter, spec: proto.ParamSpec) -> None:
        """A multiplier holds for all that share the parameter, whichever gives it; those that give one must agree."""
        owner = parameter.owner or parameter
        for name in ("lr_mult", "decay_mult"):
            if not spec.HasField(name):
                continue
            giver, value = self.multipliers.setdefault((owner, name), layer.name), getattr(spec, name)
            if giver != layer.name and value != getattr(owner, name):
                raise layer.error(
                    f"parameter '{parameter.shared_name}' is shared with layer '{giver}', whose {name} is "
                    f"{getattr(owner, name):g}: expected the same or none, got {value:g}"
                )
            setattr(owner, name, value)

    def _twice(self, name: str) -> str:
        """What is wrong where two layers make a top."""
        first = self.makers[name]
        phase = PHASES[self.graph.phase]
        return (
            f"top '{name}' is made by layer '{first.name}' ({first.where}) already, and both are in phase {phase}; "
            "give it another name, or each of them one phase: include { phase: TRAIN } and include { phase: TEST }"
        )

    def _missing(self, layer: Layer, index: int, name: str) -> ConfigError:
        """The reason why a bottom is not there: a cycle, a later layer, or nothing makes it."""
        # Those in place, perhaps this one, make nothing of their own.
        layers = enumerate(self.config.message.layer)
        makers = [(i, m) for i, m in layers if name in m.top and name not in m.bottom]
        later = [m for i, m in makers if i >= index and self.keeps(m, self.config.where(i))]
        if not later and makers:
            return layer.error(f"its bottom '{name}' is made {self._left_out(makers)}")
        if not later:
            return layer.error(f"no layer makes its bottom '{name}'{suggestion(name, self.current)}")
        path = self._cycle(layer.message, later[0])
        if path:
            return layer.error(f"cycle: {' -> '.join(path)}")
        return layer.error(
            f"its bottom '{name}' is made by the later layer '{later[0].name}'; move that layer above this one"
        )

    def _left_out(self, makers: list[tuple[int, proto.LayerParameter]]) -> str:
        """By which layers, of (index, message), a bottom would be made that are not in this graph."""
        phase, staged = PHASES[self.graph.phase], {}  # the stages that would bring one back -> that layer
        places = [(f"layer '{m.name}' ({self.config.where(i)})", m, self.config.where(i)) for i, m in makers]
        for place, message, where in places:
            for rule in message.include:
                if rule.stage and self.keeps(message, where, rule.stage):
                    staged.setdefault(tuple(rule.stage), place)
        if not staged:
            return (
                f"by {places[0][0]}, whose include and exclude rules leave it out of phase {phase}; add one that makes "
                "it there, or give this layer the same rules"
            )
        found = " or ".join(f"in stage {' and '.join(map(repr, each))} by {place}" for each, place in staged.items())
        first = next(iter(staged))
        given = " ".join(f'stage: "{stage}"' for stage in first)
        unknown = unknown_stages(self.config.message, sorted(self.stages))
        return "; ".join(
            [
                f"only {found}",
                f"give one: --stage {','.join(first)}, or {phase.lower()}_state {{ {given} }} in a solver",
                *unknown,
            ]
        )

    def _cycle(self, start: proto.LayerParameter, producer: proto.LayerParameter) -> list[str] | None:
        """Names of the layers from `start` back to itself, if what `producer` reads depends on it."""
        makers: dict[str, proto.LayerParameter] = {}
        for message in self.config.message.layer:
            for top in message.top:
                makers.setdefault(top, message)
        stack, seen = [(producer, [start.name])], set()
        while stack:
            message, path = stack.pop()
            if message.name == start.name:
                return [*path, start.name][::-1] if len(path) > 1 else [start.name, start.name]
            if message.name in seen:
                continue
            seen.add(message.name)
            for bottom in message.bottom:
                if bottom in makers and makers[bottom] is not message:
                    stack.append((makers[bottom], [*path, message.name]))
        return None
