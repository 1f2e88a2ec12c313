"""What becomes of the fields that forks of Caffe have and BVLC's does not: dialects.tsv has a row for each.

A row's first column is the message of the field. For a value of an enumeration it is the enumeration, for a layer type
that only a fork has it is `layer`. docs/dialects.md is made from the same file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from engine.config.numbers import whole
from engine.config.prototext import Node, layer_label, scalar
from engine.errors import MOST_ERRORS, ConfigError

TABLE = Path(__file__).with_name("dialects.tsv")

# What a row can say, and what that means.
DISPOSITIONS = {
    "same": "The same as one of our fields, as which it is read.",
    "read": "Computed as in the fork.",
    "layer": "An option of a layer type, or of a data source, that the fork has and this engine, too.",
    "hint": "Read, and changes no result: one note in the log for each field.",
    "refused": "An error that names the fork and what would do instead, unless it has its default.",
    "elsewhere": "Held by no net, no solver and no file of weights: not read.",
}

# Parameters that public nets also give to layers that do not read them, where they are no error. A layer that does read
# them has one of these words in its type.
_READERS = {"softmax_param": ("Softmax", "SOFTMAX", "Focal", "softmax")}


@dataclass(frozen=True)
class Row:
    """One field of one message, one value of an enumeration, or one layer type.

    forks: the names of the forks that have it, as people write them, joined by ", "."""

    message: str
    field: str
    forks: str
    disposition: str
    meaning: str


@functools.cache
def rows() -> dict[tuple[str, str], Row]:
    """Returns all rows by (message, field)."""
    lines = TABLE.read_text().splitlines()[1:]
    found = (Row(*line.split("\t")) for line in lines)
    return {(row.message, row.field): row for row in found}


@dataclass
class Review:
    """What the text of a net or a solver asks for in other dialects.

    notes: a line for each ignored field, by (message, field), at the first place of the field.
    errors: the fields and values that cannot be used.
    unknown_types: an error for each layer of a type that this engine does not have.
    idle: the places of fields that only such a layer could read; all_errors() drops the errors about them."""

    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)
    unknown_types: list[ConfigError] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)

    def look(self, message: Message, nodes: Iterable[Node]) -> None:
        """Reviews the text of a message. message: of the type of the text; its values are not read."""
        # The stubs of protobuf tell two implementations of one class apart.
        self._message(cast("Descriptor", message.DESCRIPTOR), nodes)

    def all_errors(self, errors: list[ConfigError]) -> list[ConfigError]:
        """Returns all errors of a text: its unknown types, then `errors`, those of filling its message, and those of
        this review. Errors about fields of layers of unknown types are left out. Without such fields and without other
        errors there are none: whoever builds the net finds the unknown types."""
        others = [error for error in errors if error.where not in self.idle] + self.errors
        return [*self.unknown_types, *others] if others or self.idle else []

    def _message(self, descriptor: Descriptor, nodes: Iterable[Node], label: str = "", unknown: bool = False) -> None:
        """Reviews the fields of one message, and of those in it. label: what comes first in error messages. unknown:
        whether the message is in a layer of an unknown type."""
        known, fields = rows(), descriptor.fields_by_name
        name = _name(descriptor)
        nodes = list(nodes)
        kind = next((str(node.value) for node in nodes if node.name == "type"), "")
        if name == "LayerParameter":
            unknown = self._is_unknown(nodes, label)
        for node in nodes:
            if len(self.errors) > MOST_ERRORS:
                return
            described = fields.get(node.name)
            if unknown and (described is None or refusal(described, node.value)):
                self.idle.add(node.where)
                continue
            if described is None or (kind and not any(word in kind for word in _READERS.get(node.name, ("",)))):
                continue
            row = known.get((name, node.name))
            refused = refusal(described, node.value)
            if refused:
                self.errors.append(ConfigError(f"{label}{refused}", node.where))
            elif row is not None and row.disposition == "hint":
                note = f"{node.where}: {node.name} is ignored ({possessive(row.forks)}): {row.meaning}"
                self.notes.setdefault((row.message, row.field), note)
            elif isinstance(node.value, list) and described.message_type is not None:
                self._message(described.message_type, node.value, layer_label(node) or label, unknown)

    def _is_unknown(self, nodes: list[Node], label: str) -> bool:
        """Returns whether this engine does not have the type of a layer, and keeps the error if so."""
        for node in nodes:
            if node.name == "type" and isinstance(node.value, bytes):
                error = unknown_type(node.value.decode(errors="replace"))
                if error:
                    self.unknown_types.append(ConfigError(f"{label}{error}", node.where))
                return bool(error)
        return False


def refusal(described: FieldDescriptor, value: list[Node] | bytes | str) -> str:
    """Returns why a field, or the value of an enumeration that it has, cannot be used; "" if it can. A field with its
    default value always can."""
    row, what = rows().get((_name(described.containing_type), described.name)), described.name
    if described.enum_type is not None and (row is None or row.disposition != "refused"):
        name = _value_name(described.enum_type, str(value))
        row, what = rows().get((_name(described.enum_type), name)), f"{described.name}: {name}"
    if row is None or row.disposition != "refused" or _is_default(described, value):
        return ""
    return f"{what} is {possessive(row.forks)} and is not supported; instead: {row.meaning}"


def _value_name(enum: EnumDescriptor, value: str) -> str:
    """Returns the name of a value of an enumeration; a text may also give its number."""
    number = whole(value, -(2**31), 2**31 - 1)
    named = enum.values_by_number.get(number) if number is not None else None
    return named.name if named else value


def unknown_layer(name: str) -> str:
    """Returns what dialects.tsv tells of a layer type that this engine does not have, as the tail of an error message;
    "" if it tells nothing."""
    row = rows().get(("layer", name))
    if row is None or row.disposition != "refused":
        return ""
    return f": it is {possessive(row.forks)} and is not supported; instead: {row.meaning}"


def unknown_type(name: str) -> str:
    """Returns what is wrong with a layer type in a text; "" for one that this engine has or turns into another."""
    row = rows().get(("layer", name))
    return "" if row is not None and row.disposition != "refused" else _unknown_type(name)


def _by_rows(name: str) -> str:
    """Tells which types are unknown while the layers' registry is not imported: those that a row refuses."""
    known = unknown_layer(name)
    return f"unknown layer type '{name}'{known}" if known else ""


_unknown_type: Callable[[str], str] = _by_rows


def set_type_check(unknown_type: Callable[[str], str]) -> None:
    """Sets the function that tells which layer types are unknown: it returns an error message, or "" for a known type.

    The layers' registry calls this, because engine/config may not import engine/layers."""
    global _unknown_type
    _unknown_type = unknown_type


def possessive(forks: str) -> str:
    """ "NVIDIA, SSD" -> "NVIDIA's, SSD's"."""
    return ", ".join(f"{fork}'s" for fork in forks.split(", "))


def _name(descriptor: Descriptor | EnumDescriptor | None) -> str:
    """Returns the name of a message or an enumeration, after that of its own message: PoolingParameter.PoolMethod."""
    if descriptor is None:
        return ""
    outer = descriptor.containing_type
    return f"{outer.name}.{descriptor.name}" if outer else descriptor.name


def _is_default(described: FieldDescriptor, value: list[Node] | bytes | str) -> bool:
    if described.message_type is not None or not described.has_presence or isinstance(value, list):
        return False
    try:
        given, default = scalar(described, value), described.default_value
    except ConfigError:
        return False
    return given == default or (isinstance(given, float) and abs(given - default) <= 1e-6 * abs(default))
