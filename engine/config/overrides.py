"""Sets fields from the command line: --set PATH=VALUE.

PATH is a field, or fields within messages, joined by dots: `max_iter`, `layer[conv1].convolution_param.num_output`.
`layer[NAME]` means every layer of that name, `layer[NAME@TEST]` those of them that the phase keeps, and `field[2]`
counts from 0 (one past the end adds an entry). VALUE is written as in the file, but strings need no quotes. For a list
it is comma-separated values, which replace all old ones; for a message it is `{ ... }`. An empty VALUE removes the
field or entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from engine.config.dialects import Review, refusal
from engine.config.idle_fields import DATA_PARAMS, MOVED_TO_TRANSFORM
from engine.config.numbers import position
from engine.config.phases import PHASES, kept_in
from engine.config.prototext import fields_of, fill, scalar, scan
from engine.config.renamed import RENAMED_OF_LAYERS, RENAMED_OF_SOLVERS, Renamed
from engine.config.suggestions import suggestion
from engine.errors import ConfigError, shortened

_PART = re.compile(r"\s*(\w+)(?:\[([^\]]*)\])?\s*([.=])")


def _advice(renamed: Renamed) -> str:
    if renamed.implied is None:
        return renamed.new
    field, value = renamed.implied
    return f"{renamed.new}, with {field}={str(value).lower()}"


# Paths, without their brackets, that reading a file upgrades -> what to say instead.
_OUTDATED = {
    "layers": "layer[NAME]",
    "input": "layer[input].top",
    "input_dim": "layer[input].input_param.shape[0].dim",
    "input_shape": "layer[input].input_param.shape[0].dim",
    "solver_type": "type",
    **{each.old: _advice(each) for each in RENAMED_OF_SOLVERS},
    **{f"layer.{param}.{each.old}": _advice(each) for param, renamed in RENAMED_OF_LAYERS.items() for each in renamed},
    "layer.loss_param.normalize": "normalization",
    "layer.pooling_param.ceil_mode": "round_mode",
    "layer.transpose_param": "permute_param.order",
    "layer.image_data_param.short_side": "transform_param.random_resize_param",
    "layer.convolution3d_param": "convolution_param",
    "layer.pooling3d_param": "pooling_param",
    **{
        f"layer.{param}.{field}": "dilation"
        for param in ("convolution_param", "deformable_convolution_param")
        for field in ("hole", "hole_h", "hole_w", "dilation_h", "dilation_w")
    },
}
# Paths, as above, that V1 layers have and current layers do not read -> what a current layer reads.
_IDLE = {
    f"layer.{param}.{name}": f"transform_param.{name}"
    for param in dict.fromkeys(DATA_PARAMS.values())
    for name in MOVED_TO_TRANSFORM
    if (param, name) != ("window_data_param", "scale")  # WindowData reads it there
}


@dataclass(frozen=True)
class Override:
    """One --set. steps: its PATH as (field, what stands in brackets or None); value: "" removes what PATH names."""

    text: str
    steps: tuple[tuple[str, str | None], ...]
    value: str

    @property
    def head(self) -> str:
        """The first field of the path, which tells whether the override is for a solver or for its nets."""
        return self.steps[0][0]

    def error(self, message: str) -> ConfigError:
        return ConfigError(message, place(self.text))


def place(text: str) -> str:
    """Returns the place of an override, for error messages."""
    return f"--set {shortened(text, 200)}"


def parse_override(text: str) -> Override:
    """Splits PATH=VALUE. Raises ConfigError if it is not of that form or not UTF-8, or if the path leads to a field
    that reading a file upgrades, or that a current layer does not read."""
    if any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text):
        raise ConfigError("expected text in UTF-8, without NUL", place(text))
    steps, start, mark = [], 0, "."
    while mark == ".":
        match = _PART.match(text, start)
        if match is None:
            raise ConfigError(
                "expected PATH=VALUE, such as max_iter=100 or layer[data].data_param.source=/x", place(text)
            )
        key = match[2].strip().strip("\"'") if match[2] is not None else None
        steps.append((match[1], key))
        start, mark = match.end(), match[3]
    override = Override(text, tuple(steps), text[start:].strip())
    path = ""
    for name, _ in steps:
        path = f"{path}.{name}" if path else name
        if path in _OUTDATED:
            raise override.error(f"'{name}' is upgraded when the file is read; say {_OUTDATED[path]}")
        if path in _IDLE:
            raise override.error(f"'{name}' has no effect there; say {_IDLE[path]}")
    return override


def apply(override: Override, messages: Iterable[Message], phases: Iterable[set[int]] | None = None) -> None:
    """Sets the field in all messages that have the layer or entry that the path names. All are of one type.

    phases: for each message, if they are nets, the set of phases that it is used in; both by default.
    Raises ConfigError if no message has it, if a field is unknown, or if the value does not fit.
    """
    targets = list(messages)
    used_in = list(phases) if phases is not None else [set(PHASES.values()) for _ in targets]
    for depth, (name, key) in enumerate(override.steps):
        field = _field(override, targets[0], name)
        if depth == len(override.steps) - 1:
            if field.message_type is not None and not field.has_presence:
                _assign_entries(override, targets, used_in, field, key)
            else:
                for target in targets:
                    _assign(override, target, field, key)
            return
        if field.message_type is None:
            raise override.error(f"'{name}' is a single value, it has no fields")
        targets = _step(override, targets, used_in, field, key)
        used_in = [set() for _ in targets]  # only layer[NAME@PHASE], a first step, reads phases


def _field(override: Override, message: Message, name: str) -> FieldDescriptor:
    fields = fields_of(message)
    if name not in fields:
        raise override.error(f"unknown field '{name}' in {message.DESCRIPTOR.name}{suggestion(name, fields)}")
    return fields[name]


def _step(
    override: Override, targets: list[Message], used_in: list[set[int]], field: FieldDescriptor, key: str | None
) -> list[Message]:
    """Returns the messages that a step of the path leads to from all targets. Raises ConfigError if there are none."""
    if field.has_presence:
        if key is not None:
            raise override.error(f"'{field.name}' is not a list")
        return [getattr(target, field.name) for target in targets]
    if key is None:
        names = [name for target in targets for name in _names(getattr(target, field.name))]
        example = "NAME" if names else "0"
        raise override.error(f"'{field.name}' is a list; say {field.name}[{example}]")
    may_add = bool(override.value)
    found = []
    for target, phases in zip(targets, used_in, strict=True):
        found.extend(_select(getattr(target, field.name), field, key, phases, may_add))
    if not found:
        names = {name for target in targets for name in _names(getattr(target, field.name))}
        length = max(len(getattr(target, field.name)) for target in targets)
        known = suggestion(key.split("@")[0], names) or f"; there are {length}"
        raise override.error(f"no {field.name} '{shortened(key, 100)}'{known}")
    return found


def _names(entries) -> list[str]:
    """Returns the names of the entries that have one; those of `param` hardly ever do."""
    return [entry.name for entry in entries if getattr(entry, "name", "")]


def _have_names(field: FieldDescriptor) -> bool:
    return field.message_type is not None and "name" in field.message_type.fields_by_name


def _select(entries, field: FieldDescriptor, key: str, phases: set[int], may_add: bool = False) -> list[Message]:
    """Returns the entries of a repeated message that `key` names: by name, by NAME@PHASE, or by index.

    phases: those that the net is used in. may_add: an index one past the end adds an entry, but never a layer."""
    if _have_names(field):
        named = [entry for entry in entries if entry.name == key]
        if named:
            return named
        name, _, phase = key.rpartition("@")
        if phase in PHASES:
            used = PHASES[phase] in phases
            return [entry for entry in entries if used and entry.name == name and kept_in(entry, PHASES[phase])]
    index = position(key, len(entries))
    if index is None:
        return []
    if index < len(entries):
        return [entries[index]]
    return [entries.add()] if may_add and not _are_layers(field) else []


def _are_layers(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.name == "LayerParameter"


def _assign_entries(
    override: Override, targets: list[Message], used_in: list[set[int]], field: FieldDescriptor, key: str | None
) -> None:
    """Does the last step of a path if it is a repeated message: sets the entries that `layer[x]` names, or removes them
    if the value is empty. Without [x], an empty value removes all entries, but never all layers."""
    if key is None and not override.value and not _are_layers(field):
        for target in targets:
            target.ClearField(field.name)
        return
    found = _step(override, targets, used_in, field, key)
    if override.value:
        for entry in found:
            _assign(override, entry, field, key)
        return
    for target, phases in zip(targets, used_in, strict=True):
        entries = getattr(target, field.name)
        for entry in _select(entries, field, key or "", phases):
            del entries[next(index for index, each in enumerate(entries) if each is entry)]


def _assign(override: Override, target: Message, field: FieldDescriptor, key: str | None) -> None:
    try:
        refused = refusal(field, override.value.strip("\"'")) if override.value else ""
        if refused:
            raise ConfigError(refused)
        if field.has_presence:
            if key is not None:
                raise ConfigError(f"'{field.name}' is not a list")
            target.ClearField(field.name)
            if not override.value:
                return
        if field.message_type is not None:
            _assign_message(override, getattr(target, field.name) if field.has_presence else target)
        elif field.has_presence:
            setattr(target, field.name, _value(field, override.value))
        else:
            _assign_list(override, getattr(target, field.name), field, key)
    except ConfigError as error:
        raise error if error.where else override.error(str(error)) from None


def _assign_message(override: Override, message: Message) -> None:
    message.Clear()
    text = override.value
    inner = text[1:-1] if text[0] == "{" and text[-1] == "}" else text
    message.SetInParent()
    nodes = scan(inner, place(override.text))
    errors = fill(message, nodes, place(override.text))
    review = Review()
    review.look(message, nodes)
    errors += review.errors
    if errors:
        raise errors[0]


def _assign_list(override: Override, values, field: FieldDescriptor, key: str | None) -> None:
    index = None if key is None else position(key, len(values))
    if key is None:
        del values[:]
        values.extend(_value(field, item) for item in override.value.split(",") if item.strip())
    elif index is None or (index == len(values) and not override.value):
        raise ConfigError(f"no {field.name}[{shortened(key, 100)}]; there are {len(values)}")
    elif not override.value:
        del values[index]
    elif index == len(values):
        values.append(_value(field, override.value))
    else:
        values[index] = _value(field, override.value)


def _value(field: FieldDescriptor, text: str) -> object:
    text = text.strip()
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return scalar(field, text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return scalar(field, text.encode())
