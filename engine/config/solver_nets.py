"""The nets that a solver names or holds: where their files are, which is trained, which are tested, and in what state.

solver = read_solver("solvers/digits.prototxt")
net = net_of_solver(solver, proto.TRAIN)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from engine import proto
from engine.config.config import (
    Config,
    NetConfig,
    SolverConfig,
    expand_ranks,
    override_nets,
    parse_solver,
    parse_upgraded,
    read_text,
    upgrade,
    upgrade_norms,
)
from engine.errors import FILE, ConfigError
from engine.files import is_regular

_READ = re.compile("weights|source|meanfile|(?!save_)(.*_)?file")  # names of fields that name a file to read
_TRAIN_NETS = ("net", "net_param", "train_net", "train_net_param")


@dataclass
class SolverNets:
    """The nets of a solver; message.state of each tells phase, level and stages."""

    train: NetConfig | None
    tests: list[NetConfig]
    generic: NetConfig | None  # `net` or `net_param`, which can be tested even if the solver has no test_iter
    discriminator: NetConfig | None = None  # in adversarial training; `train` is the generator then


def net_of_solver(solver: SolverConfig, phase: int) -> NetConfig:
    """Returns the net that a solver trains (proto.TRAIN), or the first of those that it tests (proto.TEST).

    A solver without test_iter tests nothing, but its `net` can still be had in phase TEST. Raises ConfigError if the
    solver names no such net, and as nets_of_solver().
    """
    nets = nets_of_solver(solver)
    if phase == proto.TRAIN and nets.train:
        return nets.train
    if phase == proto.TEST and nets.tests:
        return nets.tests[0]
    if phase == proto.TEST and nets.generic:
        return _in_state(nets.generic, proto.TEST, None)
    fields = _TRAIN_NETS if phase == proto.TRAIN else ("net", "net_param", "test_net", "test_net_param")
    raise ConfigError(f"the solver names no net; set one of {', '.join(fields)}", solver.path)


def nets_of_solver(solver: SolverConfig) -> SolverNets:
    """Reads all nets of a solver, once, and applies its net_overrides.

    The path of a net, after expand_ranks(), is tried as it is, then in the solver's folder and each folder above it
    (Caffe's own files name their nets from Caffe's root), and last as a file name beside the solver. Raises ConfigError
    if it is nowhere, or if the fields that name nets, test_iter and test_state do not go together.
    """
    if solver.nets is None:
        solver.nets = _load_nets(solver)
    return solver.nets


def files_read_by(config: NetConfig | SolverConfig) -> list[str]:
    """Returns the files that a net, or a solver with its nets, is in and reads: nets, weights, sources, means, label
    maps. Nets that cannot be read are left out; nets_of_solver() raises the error."""
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
    """Returns the files of those of a solver's nets that exist."""
    message, found = solver.message, []
    named = [("net", message.net), ("train_net", message.train_net), *(("test_net", path) for path in message.test_net)]
    named.append(("adversarial.discriminator", message.adversarial.discriminator))
    for name, path in named:
        with contextlib.suppress(ConfigError):  # nets_of_solver() raises it
            found.append(_find_net(solver, name, path)[0])
    return found


def solver_of_net(net: NetConfig, text: str) -> SolverConfig:
    """Makes a solver that trains `net` from a text that names no net."""
    config = parse_solver(text, net.path)
    config.nets = SolverNets(_in_state(net, proto.TRAIN, None), [], net)
    return config


def texts_of(config: SolverConfig) -> dict[str, str]:
    """Returns the texts of a solver and of its nets, with all overrides, by the words that messages use for them.

    Raises ConfigError for nets that cannot be read."""
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
    override_nets(nets, solver.net_overrides, phases)
    for net in nets:
        if message.engine:  # as in Intel's Caffe
            net.message.engine = message.engine
        upgrade_norms(net)
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
    """Reads the net that field `name` (its entry `index`, if it is repeated) names or holds, before overrides."""
    value = getattr(solver.message, name)
    value = value if index is None else value[index]
    if isinstance(value, str):
        return _read_named(solver, name, value)
    given = [node.value for node in solver.nodes if node.name == name and isinstance(node.value, list)]
    parts = given if index is None else given[index : index + 1]  # a net that is given twice has the fields of both
    net = Config(proto.NetParameter(), solver.path, nodes=[node for part in parts for node in part])
    net.message.CopyFrom(value)
    upgrade(net)
    return net


def _read_named(solver: SolverConfig, name: str, path: str) -> NetConfig:
    """Reads the net in the file that field `name` names, before overrides."""
    found, notes = _find_net(solver, name, path)
    net = parse_upgraded(read_text(found), found)
    net.notes[:0] = notes
    return net


def _find_net(solver: SolverConfig, name: str, path: str) -> tuple[str, list[str]]:
    """Returns (path of a net's file, notes on it). name: the field of the solver that has `path`. Raises ConfigError if
    the file is nowhere that nets_of_solver() looks."""
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
    """Returns a copy of a net with the state that it is used in: `phase`, with the level and stages of the net's own
    state and then of the solver's, `state`. Raises ConfigError if one of these says another phase."""
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
