"""Connects the layers of a net while its graph is built: blobs and shared parameters by name, and what is wrong with
names."""

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
    """Which blob a name means at this point of the file, and who owns a shared parameter."""

    def __init__(self, graph: Graph, config: NetConfig, state: proto.NetState):
        """state: that the graph of this net is built in."""
        self.graph, self.config, self.state = graph, config, state
        self.current: dict[str, Blob] = {}
        self.unknown: set[str] = set()  # tops of layers that could not be built
        self.unshaped: set[Blob] = set()
        self.owners: dict[str, Parameter] = {}
        self.makers: dict[str, Layer] = {}  # of tops: the first of each
        self.by_name: dict[tuple[str, bool], Layer] = {}  # (name, whether it reads data): with weights, or with data
        self.multipliers: dict[tuple[Parameter, str], str] = {}  # which layer has given one, to an owner

    def keeps(self, message: proto.LayerParameter, where: str, more: Iterable[str] = ()) -> bool:
        """Whether the graph has a layer, or would with more stages. Raises ConfigError, see kept()."""
        state = proto.NetState(phase=self.state.phase, level=self.state.level, stage=[*self.state.stage, *more])
        return kept(message, state, where)

    def claim_name(self, layer: Layer) -> None:
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
        phase = PHASE_NAMES[self.graph.phase]
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
        phase, staged = PHASE_NAMES[self.graph.phase], {}  # the stages that would bring one back -> that layer
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
