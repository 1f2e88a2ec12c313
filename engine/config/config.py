"""Reads nets and solvers from prototxt: validated, upgraded to the current format, with the place of every field.

    net = read_net("nets/digits.prototxt", ["layer[data].data_param.source=/x"])
    net.message.layer[3], net.where(3)  # LayerParameter, "nets/digits.prototxt:41:1"

All errors in a file are found in one go and raised as ConfigErrors, one line each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from engine import proto
from engine.config import overrides as override_paths
from engine.config.dialects import Review
from engine.config.intels_norms import upgrade_intels_norms
from engine.config.overrides import Override, parse_override
from engine.config.pooling_sides import name_sides
from engine.config.prototext import Node, fill, scan
from engine.config.stand_ins import leave_out_writers, stand_in
from engine.config.suggestions import suggestion
from engine.config.upgrade import upgrade_net, upgrade_solver
from engine.errors import ConfigError, ConfigErrors
from engine.files import read_bytes

if TYPE_CHECKING:
    from engine.config.solver_nets import SolverNets

MessageT = TypeVar("MessageT", proto.NetParameter, proto.SolverParameter)
_KINDS = {"net": proto.NetParameter, "solver": proto.SolverParameter}


@dataclass
class Config(Generic[MessageT]):
    """A net or a solver.

    message: NetParameter or SolverParameter, in the current format.
    path: the file as the user named it; for a text without a file, what messages say in its place.
    notes: lines for the user about what was assumed or upgraded.
    rank, ranks: what %# and %* stand for in the paths of a net, and of a solver and its nets.

    Of a solver only:
    own_prefix, own_weights: the snapshot_prefix and the weights of its text, which an override may have changed in the
    message.
    net_overrides: the overrides that are for its nets.
    nets: its nets, once nets_of_solver() has read them.
    """

    message: MessageT
    path: str
    notes: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list, repr=False)  # of the whole text
    _layers: list[Node | None] = field(default_factory=list, repr=False)  # of message.layer
    net_overrides: list[Override] = field(default_factory=list, repr=False)
    nets: SolverNets | None = field(default=None, repr=False)
    rank: int = 0
    ranks: int = 1
    own_prefix: str = ""
    own_weights: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Either "net" or "solver"."""
        return "net" if isinstance(self.message, proto.NetParameter) else "solver"

    def place(self, field: str) -> str:
        """Returns where(path=field), for callers that take one function from a field to its place."""
        return self.where(path=field)

    def where(self, layer: int | None = None, path: str = "") -> str:
        """Returns the place, "file:line:column", of message.layer[layer] or of the field that a dotted path names.

        Without a layer, the path starts at the top of the file. Without either, the place is the file. For a field that
        is not in the text, it is the place of the message that would hold the field.
        """
        node = self._layers[layer] if layer is not None and layer < len(self._layers) else None
        place = node.where if node else self.path
        nodes = node.value if node else self.nodes if layer is None else []
        for name in path.split(".") if path else ():
            node = next((node for node in nodes if node.name == name), None) if isinstance(nodes, list) else None
            if node is None:
                break
            place, nodes = node.where, node.value
        return place

    def put_in_front(self: Config[proto.NetParameter], layer: proto.LayerParameter) -> None:
        """Makes a layer that is not in the text the first one of a net in the current format."""
        self._layers = [None, *(self._layers or [None] * len(self.message.layer))]
        rest = list(self.message.layer)
        self.message.ClearField("layer")
        self.message.layer.extend([layer, *rest])

    def append(
        self: Config[proto.NetParameter],
        layer: proto.LayerParameter,
        of: Config[proto.NetParameter] | None = None,
        index: int = 0,
    ) -> None:
        """Makes a layer the last one of a net in the current format.

        of, index: the net and the number of the layer there whose place in the text becomes that of the new layer;
        without `of`, the layer has no place."""
        places = [*self._layers, *[None] * (len(self.message.layer) - len(self._layers))]
        self._layers = [*places, of._layers[index] if of and index < len(of._layers) else None]
        self.message.layer.append(layer)

    def with_message(self, message: MessageT) -> Config[MessageT]:
        """Returns a Config of the same file, notes and places, with another message: a copy that has the same layers,
        in the same order."""
        return Config(message, self.path, self.notes, self.nodes, self._layers)


NetConfig = Config[proto.NetParameter]
SolverConfig = Config[proto.SolverParameter]


def read_net(path: str | os.PathLike, overrides: Iterable[str] = ()) -> NetConfig:
    """Reads a net, upgrades it, and sets the fields of overrides ("path=value"). Raises ConfigError or ConfigErrors."""
    return parse_net(read_text(path), str(path), overrides)


def read_net_as_written(path: str | os.PathLike) -> NetConfig:
    """Reads and upgrades a net, but keeps the layers that read_net() replaces or leaves out. Raises as read_net()."""
    config = _parse(read_text(path), str(path), proto.NetParameter())
    _to_current_format(config)
    upgrade_norms(config)
    return config


def read_solver(path: str | os.PathLike, overrides: Iterable[str] = ()) -> SolverConfig:
    """Reads a solver; overrides of fields that only a net has wait for nets_of_solver(). Raises as read_net()."""
    return parse_solver(read_text(path), str(path), overrides)


def read(path: str | os.PathLike, overrides: Iterable[str] = ()) -> NetConfig | SolverConfig:
    """Reads a net or a solver: which of the two, the fields of the file tell. Raises as read_net()."""
    text = read_text(path)
    parse = {"net": parse_net, "solver": parse_solver}[_kind(scan(text, str(path)))]
    return parse(text, str(path), overrides)


def parse_net(text: str, name: str = "<net>", overrides: Iterable[str] = ()) -> NetConfig:
    """Makes a net from text. name: what messages say in place of a file. Raises as read_net()."""
    config = parse_upgraded(text, name)
    override_nets([config], [parse_override(override) for override in overrides])
    upgrade_norms(config)
    return config


def parse_solver(text: str, name: str = "<solver>", overrides: Iterable[str] = ()) -> SolverConfig:
    """Makes a solver from text. name: its file, for messages; nets are looked for in the folder of that file. Raises as
    read_net()."""
    config = _parse(text, name, proto.SolverParameter())
    config.notes.extend(f"{name}: {note}" for note in upgrade_solver(config.message, config.nodes))
    config.own_prefix = config.message.snapshot_prefix
    config.own_weights = _files_of(config.message.weights)
    solver_fields, net_fields = (_KINDS[kind].DESCRIPTOR.fields_by_name for kind in ("solver", "net"))
    for override in map(parse_override, overrides):
        if override.head in solver_fields:
            override_paths.apply(override, [config.message])
        elif override.head in net_fields:
            config.net_overrides.append(override)
        else:
            known = suggestion(override.head, {*solver_fields, *net_fields})
            raise override.error(f"neither solvers nor nets have a field '{override.head}'{known}")
    config.message.weights[:] = _files_of(config.message.weights)
    return config


def _files_of(texts: Iterable[str]) -> list[str]:
    """Splits each text at its commas: Caffe takes several files in one text, too."""
    return [file for text in texts for file in map(str.strip, text.split(",")) if file]


def read_text(path: str | os.PathLike) -> str:
    """Returns the text of a file. Raises ConfigError if it cannot be read or is no text.

    A file that is not UTF-8 is read as Latin-1: comments of older editors are, and the rest of a prototxt is ASCII."""
    data = read_bytes(path, ConfigError)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in data:
            raise ConfigError("not a text file; expected a net or solver in prototxt", str(path)) from None
        return data.decode("latin-1")


def _kind(nodes: list[Node], usual: str = "net") -> str:
    """Returns the kind, "net" or "solver", that has more of the fields at the top of a file; `usual` if both have as
    many."""
    names = {node.name for node in nodes}
    counts = {kind: len(names & set(message.DESCRIPTOR.fields_by_name)) for kind, message in _KINDS.items()}
    return max(counts, key=lambda kind: (counts[kind], kind == usual))


def _parse(text: str, name: str, message: MessageT) -> Config[MessageT]:
    """Fills an empty message from text, in the format that it is written in. Raises ConfigError or ConfigErrors."""
    nodes = scan(text, name)
    config = Config(message, name, nodes=nodes)
    config.notes += name_sides(nodes)
    twice: dict[str, str] = {}
    errors = fill(message, nodes, name, notes=twice)
    review = Review()
    review.look(message, nodes)
    errors = review.all_errors(errors)
    config.notes += [*twice.values(), *review.notes.values()]
    if errors:
        if (kind := _kind(nodes, config.kind)) != config.kind:
            raise ConfigError(f"this is a {kind}; expected a {config.kind}", name)
        raise ConfigErrors(errors)
    return config


def parse_upgraded(text: str, name: str) -> NetConfig:
    """Makes a net from text and upgrades it; overrides and then upgrade_norms() are left to the caller. Raises as
    read_net()."""
    config = _parse(text, name, proto.NetParameter())
    upgrade(config)
    return config


def _to_current_format(config: NetConfig) -> None:
    """Upgrades a net; one that was upgraded before, too, because an override may bring older fields in."""
    by_name: dict[str, list[Node | None]] = {}
    for node in config.nodes:
        by_name.setdefault(node.name, []).append(node)
    if config._layers:
        by_name = {"layer": config._layers}
    config._layers, notes = upgrade_net(config.message, by_name)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def upgrade(config: NetConfig) -> None:
    """Brings a net to the current format and to layer types that this engine has. Run it again after each override."""
    _to_current_format(config)
    kept, notes = leave_out_writers(config.message)
    config._layers = [config._layers[index] for index in kept]
    notes += stand_in(config.message, config.path)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def upgrade_norms(config: NetConfig) -> None:
    """Upgrades BatchNorms of Intel's Caffe. This comes last: overrides and the solver's `engine` decide about them."""
    notes = upgrade_intels_norms(config.message, config._layers)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def override_nets(nets: list[NetConfig], overrides: Iterable[Override], phases: list[set[int]] | None = None) -> None:
    """Applies overrides to all nets that have the layer or entry that they name. phases: as in overrides.apply().

    Raises ConfigError if no net has it."""
    for override in overrides:
        before = [list(net.message.layer) for net in nets]
        override_paths.apply(override, [net.message for net in nets], phases)
        for net, layers in zip(nets, before, strict=True):
            left = {id(layer) for layer in net.message.layer}  # a layer that is removed takes its place along
            net._layers = [place for place, layer in zip(net._layers, layers, strict=True) if id(layer) in left]
            upgrade(net)


def expand_ranks(path: str, rank: int, ranks: int) -> str:
    """Returns a path with the rank in place of %# and the number of ranks in place of %*, as in Intel's fork."""
    return path.replace("%#", str(rank)).replace("%*", str(ranks))


def seed_of(param: proto.SolverParameter) -> int:
    """Returns the seed of a solver's runs: its random_seed, or 1 if that is negative, as by default."""
    return param.random_seed if param.random_seed >= 0 else 1


def add_state(state: proto.NetState, level: int | None, stages: Iterable[str]) -> None:
    """Adds stages to the state of a net or a solver, and sets its level unless that is None."""
    if level is not None:
        state.level = level
    state.stage.extend(stages)
