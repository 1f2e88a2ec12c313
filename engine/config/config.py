"""Reads nets and solvers from prototxt: validated, upgraded to the current format, with the place of every field.

    solver = read_solver("solvers/digits.prototxt", ["max_iter=100", "layer[data].data_param.source=/x"])
    net = net_of_solver(solver, proto.TRAIN)
    net.message.layer[3], net.where(3)  # LayerParameter, "nets/digits/train_test.prototxt:41:1"

All errors in a file are found in one go and raised as ConfigErrors, one line each.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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
from engine.errors import FILE, ConfigError, ConfigErrors
from engine.files import is_regular, read_bytes

MessageT = TypeVar("MessageT", proto.NetParameter, proto.SolverParameter)
_KINDS = {"net": proto.NetParameter, "solver": proto.SolverParameter}
_READ = re.compile("weights|source|meanfile|(?!save_)(.*_)?file")  # fields that name what is read
_TRAIN_NETS = ("net", "net_param", "train_net", "train_net_param")


@dataclass
class Config(Generic[MessageT]):
    """A net or a solver.

    message: NetParameter or SolverParameter, in the current format.
    path: the file as it was named, or its stand-in for messages.
    notes: lines for the user about what was assumed or upgraded.
    rank, ranks: what %# and %* stand for in the paths of a net, and of a solver and its nets.
    own_prefix, own_weights: the snapshot_prefix and the weights of a solver's text, which an override may have changed
    in the message.
    """

    message: MessageT
    path: str
    notes: list[str] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list, repr=False)  # of the whole text
    _layers: list[Node | None] = field(default_factory=list, repr=False)  # of message.layer
    _net_overrides: list[Override] = field(default_factory=list, repr=False)
    _nets: SolverNets | None = field(default=None, repr=False)
    rank: int = 0
    ranks: int = 1
    own_prefix: str = ""
    own_weights: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Either "net" or "solver"."""
        return "net" if isinstance(self.message, proto.NetParameter) else "solver"

    def place(self, field: str) -> str:
        """where() of a field, for those who check a message and know nothing of its text."""
        return self.where(path=field)

    def where(self, layer: int | None = None, path: str = "") -> str:
        """The place, "file:line:column", of message.layer[layer] or of the field that a dotted path names in it.

        Without a layer, the path starts at the top of the file; where() alone is the file. For a field that is not in
        the text, the place of the message that would hold it.
        """
        node = self._layers[layer] if layer is not None and layer < len(self._layers) else None
        place = node.where if node else self.path
        nodes = node.value if node else self._nodes if layer is None else []
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
        """Makes a layer the last one of a net in the current format. Its place is that of layer number `index` in the
        text of another net, `of`; None: it is in no text."""
        places = [*self._layers, *[None] * (len(self.message.layer) - len(self._layers))]
        self._layers = [*places, of._layers[index] if of and index < len(of._layers) else None]
        self.message.layer.append(layer)

    def with_message(self, message: MessageT) -> Config[MessageT]:
        """The same file, and the places in it, for a changed copy of its message with the same layers."""
        return Config(message, self.path, self.notes, self._nodes, self._layers)


NetConfig = Config[proto.NetParameter]
SolverConfig = Config[proto.SolverParameter]


@dataclass
class SolverNets:
    """The nets of a solver; message.state of each tells phase, level and stages."""

    train: NetConfig | None
    tests: list[NetConfig]
    generic: NetConfig | None  # `net` or `net_param`, which can be tested even if the solver has no test_iter
    discriminator: NetConfig | None = None  # of adversarial training, whose generator `train` is


def read_net(path: str | os.PathLike, overrides: Iterable[str] = ()) -> NetConfig:
    """Reads a net, upgrades it, and sets the fields of overrides ("path=value"). Raises ConfigError or ConfigErrors."""
    return parse_net(read_text(path), str(path), overrides)


def read_net_as_written(path: str | os.PathLike) -> NetConfig:
    """Reads a net and upgrades it, but keeps the layers for which others stand in here, or none. Raises as
    read_net()."""
    config = _parse(read_text(path), str(path), proto.NetParameter())
    _to_current_format(config)
    _upgrade_norms(config)
    return config


def read_solver(path: str | os.PathLike, overrides: Iterable[str] = ()) -> SolverConfig:
    """Reads a solver; overrides of fields that only a net has wait for nets_of_solver(). Raises as read_net()."""
    return parse_solver(read_text(path), str(path), overrides)


def read(path: str | os.PathLike, overrides: Iterable[str] = ()) -> NetConfig | SolverConfig:
    """Reads a net or a solver, whichever the fields of the file say it is."""
    text = read_text(path)
    parse = {"net": parse_net, "solver": parse_solver}[_kind(scan(text, str(path)))]
    return parse(text, str(path), overrides)


def parse_net(text: str, name: str = "<net>", overrides: Iterable[str] = ()) -> NetConfig:
    """A net from text; name stands for the file in messages."""
    config = _parse_upgraded(text, name)
    _override_nets([config], [parse_override(override) for override in overrides])
    _upgrade_norms(config)
    return config


def parse_solver(text: str, name: str = "<solver>", overrides: Iterable[str] = ()) -> SolverConfig:
    """A solver from text; name stands for the file in messages, and its folder is where nets are looked for."""
    config = _parse(text, name, proto.SolverParameter())
    config.notes.extend(f"{name}: {note}" for note in upgrade_solver(config.message, config._nodes))
    config.own_prefix = config.message.snapshot_prefix
    config.own_weights = _files_of(config.message.weights)
    solver_fields, net_fields = (_KINDS[kind].DESCRIPTOR.fields_by_name for kind in ("solver", "net"))
    for override in map(parse_override, overrides):
        if override.head in solver_fields:
            override_paths.apply(override, [config.message])
        elif override.head in net_fields:
            config._net_overrides.append(override)
        else:
            known = suggestion(override.head, {*solver_fields, *net_fields})
            raise override.error(f"neither solvers nor nets have a field '{override.head}'{known}")
    config.message.weights[:] = _files_of(config.message.weights)
    return config


def _files_of(texts: Iterable[str]) -> list[str]:
    """Caffe takes several files in one text, too."""
    return [file for text in texts for file in map(str.strip, text.split(",")) if file]


def read_text(path: str | os.PathLike) -> str:
    """Text that is not UTF-8, as comments of older editors are, keeps its bytes as Latin-1: its marks are ASCII."""
    data = read_bytes(path, ConfigError)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in data:
            raise ConfigError("not a text file; expected a net or solver in prototxt", str(path)) from None
        return data.decode("latin-1")


def _kind(nodes: list[Node], usual: str = "net") -> str:
    """The kind that knows more of the fields at the top of a file; `usual`, where none does."""
    names = {node.name for node in nodes}
    counts = {kind: len(names & set(message.DESCRIPTOR.fields_by_name)) for kind, message in _KINDS.items()}
    return max(counts, key=lambda kind: (counts[kind], kind == usual))


def _parse(text: str, name: str, message: MessageT) -> Config[MessageT]:
    nodes = scan(text, name)
    config = Config(message, name, _nodes=nodes)
    config.notes += name_sides(nodes)
    twice: dict[str, str] = {}
    errors = fill(message, nodes, name, notes=twice)
    review = Review()
    review.look(message, nodes)
    errors = review.with_types(errors)
    config.notes += [*twice.values(), *review.notes.values()]
    if errors:
        if (kind := _kind(nodes, config.kind)) != config.kind:
            raise ConfigError(f"this is a {kind}; expected a {config.kind}", name)
        raise ConfigErrors(errors)
    return config


def _parse_upgraded(text: str, name: str) -> NetConfig:
    """A net as it is before overrides, and before _upgrade_norms()."""
    config = _parse(text, name, proto.NetParameter())
    _upgrade(config)
    return config


def _to_current_format(config: NetConfig) -> None:
    """Upgrades a net, or, after overrides, one that was upgraded before."""
    by_name: dict[str, list[Node | None]] = {}
    for node in config._nodes:
        by_name.setdefault(node.name, []).append(node)
    if config._layers:
        by_name = {"layer": config._layers}
    config._layers, notes = upgrade_net(config.message, by_name)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def _upgrade(config: NetConfig) -> None:
    """Brings a net to the current format, and to layers that are here; or, after overrides, back to them."""
    _to_current_format(config)
    kept, notes = leave_out_writers(config.message)
    config._layers = [config._layers[index] for index in kept]
    notes += stand_in(config.message, config.path)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def _upgrade_norms(config: NetConfig) -> None:
    """The last step, for overrides, and the solver's engine, tell what becomes of them."""
    notes = upgrade_intels_norms(config.message, config._layers)
    config.notes.extend(f"{config.path}: {note}" for note in notes)


def _override_nets(nets: list[NetConfig], overrides: Iterable[Override], phases: list[set[int]] | None = None) -> None:
    """An override must find its layer in one of the nets at least. A layer that it removes takes its place along."""
    for override in overrides:
        before = [list(net.message.layer) for net in nets]
        override_paths.apply(override, [net.message for net in nets], phases)
        for net, layers in zip(nets, before, strict=True):
            left = {id(layer) for layer in net.message.layer}
            net._layers = [place for place, layer in zip(net._layers, layers, strict=True) if id(layer) in left]
            _upgrade(net)


def expand_ranks(path: str, rank: int, ranks: int) -> str:
    """A path in which %# stands for the rank and %* for the number of ranks (Intel's fork)."""
    return path.replace("%#", str(rank)).replace("%*", str(ranks))


def net_of_solver(solver: SolverConfig, phase: int, index: int = 0) -> NetConfig:
    """The net that a solver trains (proto.TRAIN), or number index of those that it tests (proto.TEST).

    A solver without test_iter tests nothing, but its `net` can still be had in phase TEST.
    """
    nets = nets_of_solver(solver)
    if phase == proto.TRAIN and nets.train:
        return nets.train
    if phase == proto.TEST and nets.tests:
        return nets.tests[index]
    if phase == proto.TEST and nets.generic:
        return _in_state(nets.generic, proto.TEST, None)
    fields = _TRAIN_NETS if phase == proto.TRAIN else ("net", "net_param", "test_net", "test_net_param")
    raise ConfigError(f"the solver names no net; set one of {', '.join(fields)}", solver.path)


def seed_of(param: proto.SolverParameter) -> int:
    """The seed of a solver's runs: its random_seed, or 1 where there is none of 0 or more."""
    return param.random_seed if param.random_seed >= 0 else 1


def nets_of_solver(solver: SolverConfig) -> SolverNets:
    """Reads all nets of a solver, once, and applies the overrides that are theirs.

    A path is tried as it is, then in the solver's folder and each folder above it (Caffe's own files name their nets
    from Caffe's root), and last by its file name beside the solver; see expand_ranks(), too. Raises ConfigError if it
    is nowhere, or if the fields that name nets, test_iter and test_state do not go together.
    """
    if solver._nets is None:
        solver._nets = _load_nets(solver)
    return solver._nets


def files_read_by(config: NetConfig | SolverConfig) -> list[str]:
    """The files that a net, or a solver and its nets, are in or name to be read: nets, weights, sources, means, label
    maps. Of nets that cannot be had, nothing is known: nets_of_solver() tells why."""
    found = [config.path, *_names_of_files(config.message)]
    if config.kind == "solver":
        solver = cast(SolverConfig, config)
        found += _net_files(solver)
        with contextlib.suppress(ConfigError):
            nets = _load_nets(solver)  # not kept: the solver may yet change
            for net in filter(None, (nets.train, *nets.tests, nets.discriminator)):
                found += _names_of_files(net.message)
    return [expand_ranks(path, config.rank, config.ranks) for path in found]


def _names_of_files(message: Message) -> Iterator[str]:
    for descriptor, value in message.ListFields():
        values = [value] if descriptor.has_presence else value
        if descriptor.message_type is not None:
            for each in values:
                yield from _names_of_files(each)
        elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING and _READ.fullmatch(descriptor.name):
            yield from values


def _net_files(solver: SolverConfig) -> list[str]:
    """The files of a solver's nets that are there."""
    message, found = solver.message, []
    named = [("net", message.net), ("train_net", message.train_net), *(("test_net", path) for path in message.test_net)]
    named.append(("adversarial.discriminator", message.adversarial.discriminator))
    for name, path in named:
        with contextlib.suppress(ConfigError):  # of nets that are not there, which nets_of_solver() tells
            found.append(_find_net(solver, name, path)[0])
    return found


def solver_of_net(net: NetConfig, text: str) -> SolverConfig:
    """A solver from text, which names no net: it trains this one, whatever its path."""
    config = parse_solver(text, net.path)
    config._nets = SolverNets(_in_state(net, proto.TRAIN, None), [], net)
    return config


def add_state(state: proto.NetState, level: int | None, stages: Iterable[str]) -> None:
    """Adds to what a net or a solver says of its state. level: None where nobody asks for one."""
    if level is not None:
        state.level = level
    state.stage.extend(stages)


def texts_of(config: SolverConfig) -> dict[str, str]:
    """The texts of a solver, its overrides applied, and of its nets, by the words that messages use for them. Raises
    ConfigError for nets that cannot be read."""
    nets = nets_of_solver(config)
    texts = {"the solver": str(config.message)}
    if nets.train:
        texts["the train net"] = str(nets.train.message)
    if nets.discriminator:
        texts["the discriminator"] = str(nets.discriminator.message)
    return texts | {f"test net #{index}": str(net.message) for index, net in enumerate(nets.tests)}


def _load_nets(solver: SolverConfig) -> SolverNets:
    message = solver.message
    trained = [name for name in _TRAIN_NETS if message.HasField(name)]
    if len(trained) > 1:
        raise ConfigError(
            f"only one of {', '.join(_TRAIN_NETS)} can be given, here are {' and '.join(trained)}",
            solver.where(path=trained[1]),
        )
    tested = [("test_net_param", i) for i in range(len(message.test_net_param))]
    tested += [("test_net", i) for i in range(len(message.test_net))]
    if not trained and not tested:
        raise ConfigError(f"the solver names no net; set one of {', '.join(_TRAIN_NETS)}", solver.path)
    generic = bool(trained) and trained[0] in ("net", "net_param")
    _check_tests(solver, len(tested), generic)
    named = [(name, None) for name in trained] + tested
    sources = [_load_net(solver, name, index) for name, index in named]
    both, test_only = {proto.TRAIN, proto.TEST}, {proto.TEST}
    whole_set = not message.test_iter and generic and (message.test_interval > 0 or message.test_epoch > 0)
    is_tested = generic and (not tested or len(message.test_iter) > len(tested))
    phases = [both if is_tested else {proto.TRAIN}] * len(trained) + [test_only] * len(tested)
    nets, discriminator = [*sources], None
    if message.adversarial.discriminator:
        discriminator = _read_named(solver, "adversarial.discriminator", message.adversarial.discriminator)
        nets.append(discriminator)
        phases.append({proto.TRAIN})
    _override_nets(nets, solver._net_overrides, phases)
    for net in nets:
        if message.engine:  # as in Intel's Caffe
            net.message.engine = message.engine
        _upgrade_norms(net)
    train, tests = sources[0] if trained else None, sources[len(trained) :]
    if train:
        tests += [train] * (max(len(message.test_iter), whole_set) - len(tests))
    states = list(message.test_state) or [None] * len(tests)
    return SolverNets(
        _in_state(train, proto.TRAIN, message.train_state) if train else None,
        [_in_state(net, proto.TEST, state) for net, state in zip(tests, states, strict=True)],
        train if generic else None,
        _in_state(discriminator, proto.TRAIN, message.train_state) if discriminator else None,
    )


def _check_tests(solver: SolverConfig, test_nets: int, generic: bool) -> None:
    message = solver.message
    iters, states = len(message.test_iter), len(message.test_state)
    whole_sets = not iters and (message.test_interval > 0 or message.test_epoch > 0)
    if (iters < test_nets and not whole_sets) or (iters > test_nets and not generic):
        raise ConfigError(
            f"{iters} test_iter for {test_nets} test nets; expected one for each", solver.where(path="test_iter")
        )
    tests = max(test_nets, int(generic)) if whole_sets else iters
    if states and states != tests:
        raise ConfigError(
            f"{states} test_state for {tests} test net{'s' if tests != 1 else ''}; expected one for each, or none",
            solver.where(path="test_state"),
        )


def _load_net(solver: SolverConfig, name: str, index: int | None) -> NetConfig:
    """The net that field `name` (its entry `index`, if it is repeated) names or holds."""
    value = getattr(solver.message, name)
    value = value if index is None else value[index]
    if isinstance(value, str):
        return _read_named(solver, name, value)
    given = [node.value for node in solver._nodes if node.name == name and isinstance(node.value, list)]
    parts = given if index is None else given[index : index + 1]  # one net given twice has the fields of both
    net = Config(proto.NetParameter(), solver.path, _nodes=[node for part in parts for node in part])
    net.message.CopyFrom(value)
    _upgrade(net)
    return net


def _read_named(solver: SolverConfig, name: str, path: str) -> NetConfig:
    """The net of the file that field `name` names, before overrides."""
    found, notes = _find_net(solver, name, path)
    net = _parse_upgraded(read_text(found), found)
    net.notes[:0] = notes
    return net


def _find_net(solver: SolverConfig, name: str, path: str) -> tuple[str, list[str]]:
    """(where a net's file is, notes on it); see nets_of_solver()."""
    path = expand_ranks(path, solver.rank, solver.ranks)
    if os.path.exists(path) or os.path.isabs(path):
        return path, []
    folder = Path(solver.path).absolute().parent
    for parent in (folder, *folder.parents):
        if is_regular(parent / path):
            return os.path.relpath(parent / path), []
    beside = folder / Path(path).name
    if is_regular(beside):
        found = os.path.relpath(beside)
        return found, [f"{solver.where(path=name)}: {name} '{path}' is not there; taking {found}, beside the solver"]
    raise ConfigError(
        f"{name} '{path}' is not in the current folder, the solver's or those above; give it with --set {name}=PATH",
        solver.where(path=name),
        absent=FILE,
    )


def _in_state(net: NetConfig, phase: int, state: proto.NetState | None) -> NetConfig:
    """A copy of a net whose message.state is the phase, then what the net says, then what the solver says. Raises
    ConfigError where these say another phase."""
    message = proto.NetParameter()
    message.CopyFrom(net.message)
    message.state.Clear()
    message.state.phase = phase
    message.state.MergeFrom(net.message.state)
    if state is not None:
        message.state.MergeFrom(state)
    if message.state.phase != phase:
        used, says = ("TRAIN", "TEST") if phase == proto.TRAIN else ("TEST", "TRAIN")
        raise ConfigError(
            f"the solver uses this net in phase {used}, and state {{ phase: {says} }} contradicts it: take the phase "
            "out of the net's state, or of the solver's train_state or test_state",
            net.path,
        )
    return net.with_message(message)
