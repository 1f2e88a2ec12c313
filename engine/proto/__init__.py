"""Caffe's messages and enum values: proto.NetParameter(), proto.SolverParameter(), proto.TRAIN, proto.TEST.

proto.raw has the same messages with the packed numbers of BlobProto (data, diff, double_data, double_diff) declared as
bytes, in chunks. On the wire the two are the same, but numpy reads and writes the bytes whole, where a repeated float
of a hundred megabytes would pass through Python number by number.

Both are built from caffe.desc, the compiled form of proto/caffe.proto (tools/build_proto.py), so no generated code has
to match the installed protobuf.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from engine.errors import EngineError

_DESCRIPTORS = Path(__file__).with_name("caffe.desc")
_TEXT = Path(__file__).parents[2] / "proto/caffe.proto"  # in a checkout
_LABEL_REQUIRED = descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED
_TYPE_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def _read_schema() -> descriptor_pb2.FileDescriptorSet:
    try:
        data = _DESCRIPTORS.read_bytes()
    except FileNotFoundError:
        raise EngineError(
            f"{_DESCRIPTORS} is missing: `pip install .` builds it; in a checkout, `python tools/build_proto.py`"
        ) from None
    if _TEXT.exists() and not data.endswith(zlib.crc32(_TEXT.read_bytes()).to_bytes(4, "little")):
        raise EngineError(
            f"{_DESCRIPTORS} was not compiled from {_TEXT} as it is: run `pip install -e .`, or `make build`, which "
            "compile what has changed of proto/ and csrc/"
        )
    return descriptor_pb2.FileDescriptorSet.FromString(data)


def _packed_numbers_as_bytes(schema: descriptor_pb2.FileDescriptorSet) -> descriptor_pb2.FileDescriptorSet:
    """The schema in which BlobProto's packed fields are repeated bytes: each item is one packed run."""
    changed = descriptor_pb2.FileDescriptorSet()
    changed.CopyFrom(schema)
    for file in changed.file:
        for message in file.message_type:
            if message.name == "BlobProto":
                for field in message.field:
                    if field.options.packed:
                        field.type = _TYPE_BYTES
                        field.options.ClearField("packed")
    return changed


def _load(schema: descriptor_pb2.FileDescriptorSet) -> dict[str, object]:
    """Name -> message class, or number of a top-level enum's value, from a pool of the schema's own."""
    pool = descriptor_pool.DescriptorPool()
    names: dict[str, object] = {}
    for file in schema.file:
        pool.AddSerializedFile(file.SerializeToString())
        for message in file.message_type:
            descriptor = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            names[message.name] = message_factory.GetMessageClass(descriptor)
        for enum in file.enum_type:
            names.update((value.name, value.number) for value in enum.value)
    return names


_schema = _read_schema()
globals().update(_load(_schema))
_raw_schema = _packed_numbers_as_bytes(_schema)
raw = SimpleNamespace(**_load(_raw_schema))


def __getattr__(name: str):
    """caffe_pb2, for scripts that `import engine as caffe`."""
    if name == "caffe_pb2":
        import importlib

        return importlib.import_module("engine.proto.caffe_pb2")
    raise AttributeError(f"module 'engine.proto' has no attribute '{name}'")


# Message name -> names of the fields that it cannot be without.
REQUIRED = {
    message.name: [field.name for field in message.field if field.label == _LABEL_REQUIRED]
    for file in _schema.file
    for outer in file.message_type
    for message in (outer, *outer.nested_type)
}
