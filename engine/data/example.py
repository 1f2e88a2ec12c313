"""Reads and writes tf.train.Example and the records of TFRecord files, without TensorFlow.

A record is the length of its content (8 bytes), the masked CRC32C of these (4), the content, and its masked CRC32C (4).
An Example is a map from names to lists of bytes, floats or whole numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from crc32c import crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HEAD, CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")


def checksum(content: bytes) -> int:
    """Returns the masked CRC32C: rotated and with a constant added, because the CRC of data that hold their own CRC is
    a bad check."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(content: bytes) -> bytes:
    """Returns the record that holds `content`."""
    length = struct.pack("<Q", len(content))
    return b"".join((length, CHECKSUM.pack(checksum(length)), content, CHECKSUM.pack(checksum(content))))


def _message_class() -> Any:
    """Returns the message class of Example. It is made here, because a schema file of its own would have to be
    generated and shipped."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="engine/example.proto", package="engine.example", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str], parent: Any = file.message_type) -> Any:
        made = parent.add(name=name)
        for each, number, kind, label, of in fields:
            made.field.add(name=each, number=number, type=kind, label=label, type_name=of or None)
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("BytesList", ("value", 1, field.TYPE_BYTES, many, ""))
    message("FloatList", ("value", 1, field.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", 1, field.TYPE_INT64, many, ""))
    kinds = [
        (f"{kind.lower()}_list", n, field.TYPE_MESSAGE, one, f".engine.example.{kind}List")
        for n, kind in enumerate(("Bytes", "Float", "Int64"), 1)
    ]
    feature = message("Feature", *kinds)
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    entry = ".engine.example.Features.FeatureEntry"
    features = message("Features", ("feature", 1, field.TYPE_MESSAGE, many, entry))
    nested = message(
        "FeatureEntry",
        ("key", 1, field.TYPE_STRING, one, ""),
        ("value", 2, field.TYPE_MESSAGE, one, ".engine.example.Feature"),
        parent=features.nested_type,
    )
    nested.options.map_entry = True
    message("Example", ("features", 1, field.TYPE_MESSAGE, one, ".engine.example.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("engine.example.Example"))


_Example = _message_class()


def parse(content: bytes) -> dict[str, Sequence[Any]]:
    """Returns the features of an Example by name: lists of bytes, floats or whole numbers. Raises DecodeError."""
    found = {}
    for name, feature in _Example.FromString(content).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = getattr(feature, kind).value if kind else ()
    return found


def serialise(features: Mapping[str, bytes | Sequence[int] | Sequence[float]]) -> bytes:
    """Returns an Example of features by name: bytes, whole numbers or floats."""
    example = _Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif all(isinstance(each, int) for each in value):
            feature.int64_list.value.extend(value)
        else:
            feature.float_list.value.extend(value)
    return example.SerializeToString(deterministic=True)
