"""What becomes of the fields that forks of Caffe have and BVLC's does not: dialects.tsv, a row for each.

The rows of a fork's enumerations name the enumeration in the place of the message, those of its layers that are not
here say `layer`. docs/dialects.md is made of the same file.
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

# Options that public nets give to layers that do not read them, too; who does has one of the words in its type.
_READERS = {"softmax_param": ("Softmax", "SOFTMAX", "Focal", "softmax")}


@dataclass(frozen=True)
class Row:
    """One field of one message, one value of an enumeration, or one layer type. forks: their names, as people read
    them."""

    message: str
    field: str
    forks: str
    disposition: str
    meaning: str


@functools.cache
def rows() -> dict[tuple[str, str], Row]:
    """All rows by message and field."""
    lines = TABLE.read_text().splitlines()[1:]
    found = (Row(*line.split("\t")) for line in lines)
    return {(row.message, row.field): row for row in found}


@dataclass
class Review:
    """What the texts of a net or a solver ask for in other dialects. notes: one for each field, at its first place.
    unknown_types: an error for each layer of a type that is not here, and idle: the places of fields that only such a
    type could read."""

    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)
    unknown_types: list[ConfigError] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)

    def look(self, message: Message, nodes: Iterable[Node]) -> None:
        """Looks at the text of a message, of which only the type counts."""
        # The stubs of protobuf tell two implementations of one class apart.
        self._message(cast("Descriptor", message.DESCRIPTOR), nodes)

    def with_types(self, errors: list[ConfigError]) -> list[ConfigError]:
        """All errors of a text, of which `errors` are those of its fields: unknown types first, without what their own
        fields bring. Types alone are none: who builds the net finds those, too."""
        others = [error for error in errors if error.where not in self.idle] + self.errors
        return [*self.unknown_types, *others] if others or self.idle else []

    def _message(self, descriptor: Descriptor, nodes: Iterable[Node], label: str = "", unknown: bool = False) -> None:
        """label: what comes first in error messages. unknown: it is in a layer of a type that is not here."""
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
        """Whether the layer has a type that is not here."""
        for node in nodes:
            if node.name == "type" and isinstance(node.value, bytes):
                error = unknown_type(node.value.decode(errors="replace"))
                if error:
                    self.unknown_types.append(ConfigError(f"{label}{error}", node.where))
                return bool(error)
        return False


def refusal(described: FieldDescriptor, value: list[Node] | bytes | str) -> str:
    """Why a field, or its value of an enumeration, cannot be used; "" if it can, as any field with its default."""
    row, what = rows().get((_name(described.containing_type), described.name)), described.name
    if described.enum_type is not None and (row is None or row.disposition != "refused"):
        name = _value_name(described.enum_type, str(value))
        row, what = rows().get((_name(described.enum_type), name)), f"{described.name}: {name}"
    if row is None or row.disposition != "refused" or _is_default(described, value):
        return ""
    return f"{what} is {possessive(row.forks)} and is not supported; instead: {row.meaning}"


def _value_name(enum: EnumDescriptor, value: str) -> str:
    """The name of a value of an enumeration, which a text may also give as its number."""
    number = whole(value, -(2**31), 2**31 - 1)
    named = enum.values_by_number.get(number) if number is not None else None
    return named.name if named else value


def unknown_layer(name: str) -> str:
    """What is known of a layer type that is not here: a tail for an error message, or ""."""
    row = rows().get(("layer", name))
    if row is None or row.disposition != "refused":
        return ""
    return f": it is {possessive(row.forks)} and is not supported; instead: {row.meaning}"


def unknown_type(name: str) -> str:
    """What is wrong with a layer's type in a text; "" for one that is here, or that another becomes."""
    row = rows().get(("layer", name))
    return "" if row is not None and row.disposition != "refused" else _unknown_type(name)


def _by_rows(name: str) -> str:
    known = unknown_layer(name)
    return f"unknown layer type '{name}'{known}" if known else ""


_unknown_type: Callable[[str], str] = _by_rows


def ask_of_types(unknown_type: Callable[[str], str]) -> None:
    """Takes what tells the error of a type, "" for one that is here: the layers' registry gives it, for texts lie below
    the layers. Without it, types are unknown that a row refuses."""
    global _unknown_type
    _unknown_type = unknown_type


def possessive(forks: str) -> str:
    """ "NVIDIA, SSD" -> "NVIDIA's, SSD's"."""
    return ", ".join(f"{fork}'s" for fork in forks.split(", "))


def _name(descriptor: Descriptor | EnumDescriptor | None) -> str:
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
