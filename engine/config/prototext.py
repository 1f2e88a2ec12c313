"""Reads the protobuf text format with the place of every field, which protobuf's own reader does not give.

scan() turns a text into a tree of Nodes, fill() a tree into a message; fill() continues after an error, so that one run
shows all errors of a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from engine import proto
from engine.config.numbers import whole
from engine.config.suggestions import suggestion
from engine.errors import MOST_ERRORS, ConfigError

_TOKEN = re.compile(
    r"""(?P<skip>(?:[ \t\r\f\v\n]+|\#[^\n]*)+)
      | (?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
      | (?P<word>[-+.\w]+)
      | (?P<mark>[{}<>:;,\[\]])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F])(?![0-9a-fA-F])|.)", re.DOTALL)
_POINTER = "version https://git-lfs.github.com/spec/"
_DEEPEST = 50  # messages within messages; Caffe's own go to about 6
_CLOSES = {"{": "}", "<": ">"}
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")  # at most the digits of 64 bits
_FLOAT = re.compile(r"(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?")
_LONGEST_FLOAT = 400  # characters
_FLOAT_LIMITS = {  # numbers below round to finite ones; infinities and NaN are refused, as they spread through a net
    FieldDescriptor.CPPTYPE_FLOAT: 3.4028235677973366e38,
    FieldDescriptor.CPPTYPE_DOUBLE: math.inf,
}
_V1_TYPE = f"{proto.V1LayerParameter.DESCRIPTOR.full_name}.type"
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_INTEGER_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1, "a 32-bit integer"),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1, "a 64-bit integer"),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1, "a 32-bit integer of at least 0"),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1, "a 64-bit integer of at least 0"),
}


@dataclass(slots=True)
class Node:
    """One value of one field. value: list of Nodes (a message), bytes (a quoted string) or str (number, enum, bool)."""

    name: str
    file: str
    line: int
    column: int
    value: list[Node] | bytes | str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def child(self, name: str) -> Node | None:
        """Returns the first field of this name in a message, or None."""
        if isinstance(self.value, list):
            for node in self.value:
                if node.name == name:
                    return node
        return None


def where_of(node: Node | None) -> str | None:
    """Returns the place of a node, for error messages; None for None, an unknown place."""
    return node.where if node else None


class _Scanner:
    """Recursive descent over the tokens of one text; .kind, .text and .start are those of the current token."""

    def __init__(self, text: str, file: str):
        self.source, self.file = text, file
        self.position = 0
        self.depth = 0
        self.line, self.line_start = 1, 0  # of the current token: the number of its line, and the offset of that line
        self._counted = 0  # newlines before this offset are in self.line
        self.advance()

    def advance(self) -> None:
        while self.position < len(self.source):
            match = _TOKEN.match(self.source, self.position)
            self.start = self.position
            if match is None:
                self.locate()
                line = self.source[self.position :].split("\n", 1)[0]
                if line[0] in "\"'":
                    self.fail("this string is not closed on its line")
                self.fail(f"unexpected character {line[0]!r}")
            self.position = match.end()
            if match.lastgroup != "skip":
                self.kind, self.text = match.lastgroup, match.group()
                self.locate()
                return
        self.kind, self.text, self.start = "end", "the end of the file", len(self.source)
        self.locate()

    def locate(self) -> None:
        newlines = self.source.count("\n", self._counted, self.start)
        if newlines:
            self.line += newlines
            self.line_start = self.source.rindex("\n", self._counted, self.start) + 1
        self._counted = self.start

    def fail(self, message: str) -> NoReturn:
        raise ConfigError(message, f"{self.file}:{self.line}:{self.start - self.line_start + 1}")

    def fields(self, opener: Node | None = None, close: str = "") -> list[Node]:
        """Reads all fields up to the mark `close`, which ends the message `opener`, or up to the end of the text."""
        nodes: list[Node] = []
        while self.text != close or self.kind != "mark":
            if self.kind == "end":
                if opener is None:
                    return nodes
                raise ConfigError(f"the '{{' of '{opener.name}' is never closed", opener.where)
            if self.kind != "word":
                self.fail(f"expected the name of a field, got {self.text}")
            nodes.extend(self.field())
        self.advance()
        return nodes

    def field(self) -> Iterator[Node]:
        """Reads one `name: value`, `name { ... }` or `name: [ ... ]`; a list gives a Node for each item."""
        name, line, column = self.text, self.line, self.start - self.line_start + 1
        self.advance()
        colon = self.kind == "mark" and self.text == ":"
        if colon:
            self.advance()
        if self.kind == "mark" and self.text == "[":
            self.advance()
            while self.text != "]":
                yield self.value(Node(name, self.file, line, column), True)
                if self.text == ",":
                    self.advance()
                elif self.text != "]":
                    self.fail(f"expected ',' or ']' in the list of '{name}', got {self.text}")
            self.advance()
        else:
            node = self.value(Node(name, self.file, line, column), colon)
            if isinstance(node.value, str) and self.kind == "mark" and self.text == ":":  # of the next field's name
                raise ConfigError(f"'{name}' has no value: '{node.value}:' begins the next field", node.where)
            yield node
        if self.kind == "mark" and self.text in ",;":
            self.advance()

    def value(self, node: Node, colon: bool) -> Node:
        """Reads the value of `node` and returns it. colon: whether one came before; only a message needs none."""
        if self.kind == "mark" and self.text in _CLOSES:
            close = _CLOSES[self.text]
            self.depth += 1
            if self.depth > _DEEPEST:
                self.fail(f"more than {_DEEPEST} messages within each other")
            self.advance()
            node.value = self.fields(node, close)
            self.depth -= 1
        elif not colon:
            self.fail(f"expected ':' or '{{' after '{node.name}', got {self.text}")
        elif self.kind == "string":
            pieces = []
            while self.kind == "string":  # neighbours are one string, as in C
                pieces.append(self.unquoted())
                self.advance()
            node.value = b"".join(pieces)
        elif self.kind == "word":
            node.value = self.text
            self.advance()
            if node.value == "-" and self.kind == "word" and self.text[0] not in "+-":  # the sign is a token by itself
                node.value += self.text
                self.advance()
        else:
            self.fail(f"expected a value for '{node.name}', got {self.text}")
        return node

    def unquoted(self) -> bytes:
        try:
            return unescaped(self.text[1:-1])
        except ValueError as error:
            self.fail(f"bad escape in a string: {error}")


def unescaped(text: str) -> bytes:
    """Returns the bytes of a string with C's escapes. Raises ValueError for a bad escape.

    Protobuf's text_encoding.CUnescape() does the same, in a time that is quadratic in a run of backslashes."""
    # Python has the same escapes, but wants two digits after \\x.
    padded = _ESCAPE.sub(lambda found: f"\\x0{found[1]}" if found[1] else found[0], text)
    unicode = padded.encode("raw_unicode_escape").decode("raw_unicode_escape")
    return unicode.encode().decode("unicode_escape").encode("latin-1")


def scan(text: str, file: str) -> list[Node]:
    """Returns the fields at the top of a text. Raises ConfigError at the first place that is not in the text format."""
    if text.startswith(_POINTER):
        raise ConfigError("a pointer of Git LFS, not the file itself; fetch that by `git lfs pull`", f"{file}:1:1")
    return _Scanner(text, file).fields()


def scalar(field: FieldDescriptor, value: bytes | str) -> object:
    """Returns the value that a field takes for a text (bytes: it was quoted). Raises ConfigError, without a place, if
    the text does not fit the field."""
    kind = field.cpp_type
    shown = value.decode(errors="replace") if isinstance(value, bytes) else value
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if isinstance(value, str):
            raise ConfigError(f"'{field.name}' expects a string in quotes, got {shown}")
        try:
            return value if field.type == FieldDescriptor.TYPE_BYTES else value.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"'{field.name}' is not UTF-8 text") from None
    if isinstance(value, bytes):
        if field.full_name == _V1_TYPE:
            raise ConfigError(f'type "{shown}" is of the current format, `layers` of the older one; write `layer`')
        raise ConfigError(f"'{field.name}' expects {_expected(field)} without quotes, got \"{shown}\"")
    if kind == FieldDescriptor.CPPTYPE_BOOL and value in _BOOLS:
        return _BOOLS[value]
    if kind in _FLOAT_LIMITS and len(value) <= _LONGEST_FLOAT and (match := _FLOAT.fullmatch(value)):
        number = float(match[1])
        if abs(number) < _FLOAT_LIMITS[kind]:
            return number
    if field.enum_type is not None:
        names = field.enum_type.values_by_name
        if value in names:
            return names[value].number
        number = whole(value, -(2**31), 2**31 - 1)
        if number in field.enum_type.values_by_number:
            return number
        raise ConfigError(f"'{field.name}' has no value {shown}{suggestion(value, names)}")
    if kind in _INTEGER_RANGES and _INTEGER.fullmatch(value):
        digits = value.lstrip("-")
        number = int(digits, 8 if len(digits) > 1 and digits.isdigit() and digits[0] == "0" else 0)
        number = -number if value[0] == "-" else number
        low, high, _ = _INTEGER_RANGES[kind]
        if low <= number <= high:
            return number
    raise ConfigError(f"'{field.name}' expects {_expected(field)}, got {shown}")


def _expected(field: FieldDescriptor) -> str:
    kind = field.cpp_type
    if kind in _INTEGER_RANGES:
        return _INTEGER_RANGES[kind][2]
    if field.enum_type is not None:
        return f"one of {', '.join(field.enum_type.values_by_name)}"
    return "true or false" if kind == FieldDescriptor.CPPTYPE_BOOL else "a finite number"


def fields_of(message: Message) -> Mapping[str, FieldDescriptor]:
    """Returns the fields of a message's type by name."""
    # The stubs of protobuf tell two implementations of one class apart.
    return cast("Mapping[str, FieldDescriptor]", message.DESCRIPTOR.fields_by_name)


def fill(
    message: Message, nodes: list[Node], where: str, label: str = "", notes: dict[str, str] | None = None
) -> list[ConfigError]:
    """Sets message's fields from nodes. Returns the errors, one for each node that does not fit, and stops after
    MOST_ERRORS of them.

    If a field is given twice, its last value counts; if a message is, the fields of both do. This is how protobuf
    merges binary files, and how some forks read texts; BVLC's Caffe refuses such a text.

    where: the place of the message, for errors about missing fields.
    label: what comes first in error messages.
    notes: takes a note on each field that is given twice, by its name; if None, such a field is an error.
    """
    descriptor, fields = message.DESCRIPTOR, fields_of(message)
    errors: list[ConfigError] = []
    first: dict[str, Node] = {}
    for node in nodes:
        if len(errors) > MOST_ERRORS:
            return errors
        field = fields.get(node.name)
        if field is None:
            known = suggestion(node.name, fields)
            errors.append(ConfigError(f"{label}unknown field '{node.name}' in {descriptor.name}{known}", node.where))
            continue
        if field.has_presence and node.name in first:
            twice = f"{label}'{node.name}' is given twice; first in line {first[node.name].line}"
            if notes is None:
                errors.append(ConfigError(twice, node.where))
                continue
            kept = "the fields of both count" if field.message_type is not None else "the last one counts"
            notes.setdefault(node.name, f"{node.where}: {twice}; {kept}")
        first.setdefault(node.name, node)
        errors.extend(_fill_field(message, field, node, label, notes))
    errors.extend(
        ConfigError(f"{label}'{name}' is missing in {descriptor.name}", where)
        for name in proto.REQUIRED.get(descriptor.name, ())
        if name not in first
    )
    return errors


def _fill_field(
    message: Message, field: FieldDescriptor, node: Node, label: str, notes: dict[str, str] | None
) -> list[ConfigError]:
    if field.message_type is not None:
        if not isinstance(node.value, list):
            return [ConfigError(f"{label}'{node.name}' expects {{ ... }}, got a single value", node.where)]
        target = getattr(message, node.name)
        target = target if field.has_presence else target.add()
        if field.has_presence:
            target.SetInParent()
        return fill(target, node.value, node.where, layer_label(node) or label, notes)
    if isinstance(node.value, list):
        return [ConfigError(f"{label}'{node.name}' expects {_expected_scalar(field)}, got {{ ... }}", node.where)]
    try:
        value = scalar(field, node.value)
    except ConfigError as error:
        return [ConfigError(f"{label}{error}", node.where)]
    if field.has_presence:
        setattr(message, node.name, value)
    else:
        getattr(message, node.name).append(value)
    return []


def _expected_scalar(field: FieldDescriptor) -> str:
    return "a string" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else _expected(field)


def layer_label(node: Node) -> str:
    """Returns what comes first in messages about a layer, "layer 'name': ", in any of the formats; "" if the node is no
    layer or has no name."""
    if node.name not in ("layer", "layers"):
        return ""
    name = node.child("name")
    if name is None and (inner := node.child("layer")) is not None:  # V0
        name = inner.child("name")
    return f"layer '{name.value.decode(errors='replace')}': " if name and isinstance(name.value, bytes) else ""
