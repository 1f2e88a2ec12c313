"""Connects the layers of a net while its graph is built: finds blobs and shared parameters by name, and makes the
errors for wrong names."""

from __future__ import annotations

from collections.abc import Iterable

from engine import proto
from engine.config import NetConfig
from engine.config.phases import PHASE_NAMES, kept, unknown_stages
from engine.config.suggestions import suggestion
from engine.errors import ConfigError
from engine.graph.graph import Graph
from engine.layers.base import Blob, Layer, Parameter, Shape
from engine.layers.data import Data


class Connector:
    """Knows, at this point of the file, which blob a name means, and which parameter owns a shared name."""

    def __init__(self, graph: Graph, config: NetConfig, state: proto.NetState):
        """state: phase, level and stages of the graph."""
        self.graph, self.config, self.state = graph, config, state
        self.current: dict[str, Blob] = {}  # name -> the blob that it means now
        self.unknown: set[str] = set()  # names of tops of layers that could not be built
        self.unshaped: set[Blob] = set()  # blobs whose shapes are not known
        self.owners: dict[str, Parameter] = {}  # shared name -> the parameter that owns it
        self.makers: dict[str, Layer] = {}  # name of a top -> the first layer that makes it
        # (name, whether the layer reads data) -> the first layer of that name that has weights, or reads data
        self.by_name: dict[tuple[str, bool], Layer] = {}
        # (owner, name of a multiplier) -> the layer that has given it
        self.multipliers: dict[tuple[Parameter, str], str] = {}

    def keeps(self, message: proto.LayerParameter, where: str, more: Iterable[str] = ()) -> bool:
        """Tells whether the graph has a layer, or would have it with `more` stages. Raises ConfigError as kept()
        does."""
        state = proto.NetState(phase=self.state.phase, level=self.state.level, stage=[*self.state.stage, *more])
        return kept(message, state, where)

    def claim_name(self, layer: Layer) -> None:
        """Raises ConfigError if two layers that have weights, or two that read data, have one name: weights in files,
        and data, are found by it."""
        is_data = isinstance(layer, Data)
        if not (layer.params or is_data):
            return
        first = self.by_name.setdefault((layer.name, is_data), layer)
        if first is not layer:
            raise layer.error(
                f"has the name of the layer at {first.where}; weights and data go by names: give it another"
            )

    def find_bottoms(self, layer: Layer, index: int) -> bool:
        """Finds the bottoms of the layer, which is number `index` of the file. Returns False if one depends on a layer
        whose error is already reported. Raises ConfigError for a blob that is not there."""
        if any(name in self.unknown for name in layer.message.bottom):
            self.skip(layer.message)
            return False
        for name in layer.message.bottom:
            if name not in self.current:
                raise self._missing(layer, index, name)
            layer.bottoms.append(self.current[name])
        return True

    def make_tops(self, layer: Layer, shapes: list[Shape]) -> list[Blob]:
        """Returns new blobs of these shapes for a layer's tops. Raises ConfigError for a name that is taken."""
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

    def take_back_tops(self, layer: Layer) -> None:
        """Undoes make_tops() for a layer that does not work in place."""
        for top in layer.tops:
            self.current.pop(top.name, None)

    def shapes_are_known(self, layer: Layer) -> bool:
        """Tells whether the shapes of a layer's bottoms are known."""
        return self.unshaped.isdisjoint(layer.bottoms)

    def leave_unshaped(self, layer: Layer) -> None:
        """Gives a layer tops without shapes, in a graph that is only shown."""
        layer.tops = [Blob(name, ()) for name in layer.message.top]
        self.graph.unshaped.append(layer)
        self.unshaped.update(layer.tops)
        self.current.update({top.name: top for top in layer.tops})
        self._keep_maker(layer)

    def with_hint(self, layer: Layer, error: ConfigError) -> ConfigError:
        """Returns a layer's error, with a hint if the layer reads a data layer's second top, which has no pictures."""
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

    def skip(self, message: proto.LayerParameter) -> None:
        """Notes that a layer could not be built, so that layers that read its tops are skipped, too."""
        self.unknown.update(message.top)

    def share(self, layer: Layer, parameter: Parameter) -> None:
        """Makes the first parameter of a shared name the owner of the others. Raises ConfigError if shapes differ."""
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
        """Gives a shared parameter the multipliers of one of its layers: they hold for all layers that share it. Raises
        ConfigError if layers give different ones."""
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
        """Returns the error's text for a top that two layers make."""
        first = self.makers[name]
        phase = PHASE_NAMES[self.graph.phase]
        return (
            f"top '{name}' is made by layer '{first.name}' ({first.where}) already, and both are in phase {phase}; "
            "give it another name, or each of them one phase: include { phase: TRAIN } and include { phase: TEST }"
        )

    def _missing(self, layer: Layer, index: int, name: str) -> ConfigError:
        """Returns the error for a bottom that is not there: because of a cycle, because a later layer makes it, or
        because no layer does."""
        # A layer that works in place, such as perhaps this one, does not count: it makes no blob of its own.
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
        """Returns which layers would make a bottom, but are left out of this graph by their rules, and in which stages
        they would not be. makers: (index, message) of these layers."""
        phase, staged = PHASE_NAMES[self.graph.phase], {}  # stages that would bring a layer back -> the layer
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
        unknown = unknown_stages(self.config.message, sorted(set(self.state.stage)))
        return "; ".join(
            [
                f"only {found}",
                f"give one: --stage {','.join(first)}, or {phase.lower()}_state {{ {given} }} in a solver",
                *unknown,
            ]
        )

    def _cycle(self, start: proto.LayerParameter, producer: proto.LayerParameter) -> list[str] | None:
        """Returns the names of the layers from `start` back to itself, if what `producer` reads depends on `start`;
        else None."""
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
