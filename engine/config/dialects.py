"""What becomes of the fields that forks of Caffe have and BVLC's does not: dialects.tsv, a row for each.

The rows of a fork's enumerations name the enumeration in the place of the message, those of its layers that are not
here say `layer`. docs/dialects.md is made of the same file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
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
    """What the texts of a net or a solver ask for in other dialects. notes: one for each field, at its first place."""

    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)

    def look(self, message: Message, nodes: Iterable[Node]) -> None:
        """Looks at the text of a message, of which only the type counts."""
        # The stubs of protobuf tell two implementations of one class apart.
        self._message(cast("Descriptor", message.DESCRIPTOR), nodes)

    def _message(self, descriptor: Descriptor, nodes: Iterable[Node], label: str = "") -> None:
        """label: what comes first in error messages."""
        known, fields = rows(), descriptor.fields_by_name
        name = _name(descriptor)
        nodes = list(nodes)
        kind = next((str(node.value) for node in nodes if node.name == "type"), "")
        if name == "LayerParameter" and any(node.name not in fields for node in nodes):
            self._layer(nodes, label)
        for node in nodes:
            if len(self.errors) > MOST_ERRORS:
                return
            described = fields.get(node.name)
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
                self._message(described.message_type, node.value, layer_label(node) or label)

    def _layer(self, nodes: list[Node], label: str) -> None:
        """What is known of the type of a layer that has fields which nobody here knows."""
        for node in nodes:
            if node.name == "type" and isinstance(node.value, bytes):
                kind = node.value.decode(errors="replace")
                if known := unknown_layer(kind):
                    self.errors.append(ConfigError(f"{label}type '{kind}'{known}", node.where))


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
    return f": it is {possessive(row.forks)} and is not supported; instead: {row.meaning}" if row else ""


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
