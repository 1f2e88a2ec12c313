"""Changes inputs at random: bytes, words of texts, fields of messages. The generator alone decides what is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Mutate = Callable[[bytes, Random, Sequence[bytes]], bytes]

PIECES = [b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\0\0\0\0", b"\0\0\0\x80", b"\xff\xff\xff\x7f", b"\xff" * 4]
PIECES += [b"\xff" * 8, b"\0" * 8, b"\xff" * 9 + b"\1", b"\x80" * 9 + b"\1", b"\0\0\xc0\x7f", b"\0\0\x80\x7f"]

NUMBERS = "0 1 2 3 7 -1 0.1 -0.5 2147483647 2147483648 -2147483648 4294967295 4294967296 9223372036854775807".split()
NUMBERS += (
    "-9223372036854775808 18446744073709551615 1e38 1e39 1e-45 1e400 nan inf -inf 0x10 010 1_000 +1 1. .5".split()
)
NUMBERS += ["1" * 5000, "²", "٣", "--5", "-", "1f"]
WORDS = [
    *'true false TRAIN TEST MAX SUM layer layers input input_dim top bottom name type { } < > [ ] : , ; # = "" '.split()
]
WORDS += [
    "é",
    '"a\\0b"',
    '"\\400"',
    '"\\ud800"',
    f'"{"x" * 300}"',
    f'"{"y/" * 3000}"',
    "\0",
    "\ufeff",
    "\u2028",
    "\n",
    ".",
]
TOKEN = re.compile(r'"[^"\n]*"|[-+.\w]+|\s+|.', re.DOTALL)
NUMBER = re.compile(r"[-+]?[\d.]+\w*")

INTEGERS = [0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 63, 100, 255, 1000, 65535, 65536, 2**20, 2**24 + 1, 2**31 - 1]
INTEGERS += [2**31, 2**32 - 1]
NEGATIVE = [-1, -2, -3, -5, -100, -(2**31)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, 3.5, 1e-45, 100.0, -7.3, 3.4e38]
STRINGS = ["", "x", "constant", "xavier", "msra", "gaussian", "uniform", "bilinear", "positive_unitball"]
UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
REAL = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def mutate_bytes(data: bytes, random: Random, corpus: Sequence[bytes]) -> bytes:
    """Changes a few bytes: mostly single ones, sometimes pieces, which may come from other inputs."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 3, 5, 10])):
        changed = changed or bytearray(random.randbytes(4))
        at = random.randrange(len(changed))
        kind = random.randrange(9)
        if kind == 0:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            changed[at] = random.randrange(256)
        elif kind == 2:
            del changed[at : at + random.choice([1, 2, 4, 8, 64, 1024])]
        elif kind == 3:
            changed[at:at] = random.choice(PIECES)
        elif kind == 4:
            piece = random.choice(PIECES)
            changed[at : at + len(piece)] = piece
        elif kind == 5:
            changed[at:at] = changed[at : at + random.choice([1, 4, 16, 256])]
        elif kind == 6:
            del changed[at:]
        elif kind == 7:
            changed[at : at + random.choice([0, 4, 64])] = _part(random.choice(corpus), random, [4, 16, 64, 512])
        else:  # the head tells how the rest is read
            changed[random.randrange(min(len(changed), 64))] = random.randrange(256)
    return bytes(changed)


def mutate_text(data: bytes, random: Random, corpus: Sequence[bytes]) -> bytes:
    """Changes a few words and numbers of a text, and seldom a few bytes."""
    if random.random() < 0.1:
        return mutate_bytes(data, random, corpus)
    tokens = _tokens(data)
    for _ in range(random.choice([1, 1, 2, 3, 6])):
        at = random.randrange(len(tokens) + 1)
        numbers = [i for i, token in enumerate(tokens) if NUMBER.fullmatch(token)]
        kind = random.randrange(8)
        if kind < 3 and numbers:
            tokens[random.choice(numbers)] = random.choice(NUMBERS)
        elif kind == 3:
            del tokens[at : at + random.choice([1, 1, 3, 10, 100])]
        elif kind == 4:
            tokens.insert(at, random.choice(WORDS))
        elif kind == 5:
            tokens[at : at + 1] = [random.choice(WORDS + NUMBERS)]
        elif kind == 6:
            tokens[at:at] = _part(tokens, random, [1, 5, 30, 200])
        else:
            tokens[at : at + random.choice([0, 1])] = _part(_tokens(random.choice(corpus)), random, [1, 1, 5, 30])
    return "".join(tokens).encode("utf-8", "surrogateescape")


def _tokens(data: bytes) -> list[str]:
    return TOKEN.findall(data.decode("utf-8", "surrogateescape"))


def _part(whole, random: Random, lengths: list[int]):
    at = random.randrange(len(whole) + 1)
    return whole[at : at + random.choice(lengths)]


def text_of(message: Message) -> bytes:
    """Returns a message as a prototxt."""
    return text_format.MessageToString(message, as_utf8=True).encode()


def change_field(message: Message, random: Random) -> None:
    """Sets, adds or removes a value somewhere in a message, mostly where it has values already."""
    present = [field for field, _ in message.ListFields()]
    usual = present if present and random.random() < 0.6 else list(message.DESCRIPTOR.fields)
    field = random.choice(usual)
    if field.message_type is not None:
        if field.message_type.name == "BlobProto":
            return
        if field.has_presence:
            part = getattr(message, field.name)
            part.SetInParent()
        else:
            parts = getattr(message, field.name)
            part = parts.add() if not parts or random.random() < 0.2 else random.choice(parts)
        change_field(part, random)
    elif not field.has_presence:
        _change_list(getattr(message, field.name), field, random)
    elif random.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, random))


def _change_list(values, field: FieldDescriptor, random: Random) -> None:
    kind = random.random()
    if values and kind < 0.6:
        values[random.randrange(len(values))] = _value(field, random)
    elif values and kind < 0.75:
        del values[random.randrange(len(values))]
    else:
        values.append(_value(field, random))


def _value(field: FieldDescriptor, random: Random):
    integers = INTEGERS if random.random() < 0.3 else INTEGERS[:12]  # large ones are mostly refused
    if field.cpp_type in UNSIGNED:
        return random.choice(integers)
    if field.cpp_type in SIGNED:
        return min(random.choice(integers + NEGATIVE), 2**31 - 1)
    if field.cpp_type in REAL:
        return random.choice(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    return random.choice(STRINGS)
