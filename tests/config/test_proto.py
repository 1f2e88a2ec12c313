"""The schema against the table of Caffe's, and the two views of the wire format against each other."""

import csv

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from engine import proto
from tests.shared import SHARED, needs_shared

TABLE = "reference/caffe-schema.tsv"
DIALECTS = "reference/dialects.tsv"
# (message, field): its number here. The old number keeps the meaning that it has in BVLC's Caffe.
RENUMBERED = {
    ("SolverParameter", "eval_type"): 53,
    ("SolverParameter", "ap_version"): 54,
    ("SolverParameter", "test_offset"): 55,
    ("LayerParameter", "smooth_l1_loss_param"): 160,
    ("PoolingParameter", "avg_include_pad"): 18,
}
FIELD_TYPES = descriptor_pb2.FieldDescriptorProto


def schema_file():
    file = descriptor_pb2.FileDescriptorProto()
    proto.NetParameter.DESCRIPTOR.file.CopyToProto(file)
    return file


def table():
    """Returns the rows of fields as dicts, and (enum, value, number) of the second table."""
    lines = (SHARED / TABLE).read_text().split("\n")
    end = lines.index("")
    fields = list(csv.DictReader(lines[:end], delimiter="\t", restval=""))
    return fields, list(csv.DictReader([line for line in lines[end:] if line], delimiter="\t"))


def dialects():
    """Returns the rows of the forks' fields as dicts, and (enum, value, number) of their enumerations."""
    lines = (SHARED / DIALECTS).read_text().splitlines()
    fields = csv.DictReader([line for line in lines if not line.startswith("enum ")], delimiter="\t", restval="")
    enums = [line[5:].split("\t") for line in lines if line.startswith("enum ")]
    values = [(name, *value.split("=")) for name, listed, *_ in enums for value in listed.split()]
    return list(fields), {(name, value, int(number)) for name, value, number in values}


def type_name(field):
    if field.type_name:
        return field.type_name.removeprefix(".caffe.")
    return FIELD_TYPES.Type.Name(field.type).removeprefix("TYPE_").lower()


OWN_ENUMS = {"SolverParameter.Precision"}


def same_default(ours, theirs, kind):
    if kind in ("float", "double") and ours and theirs:
        return np.float32(ours) == np.float32(theirs)
    return ours == theirs


@needs_shared(TABLE)
def test_every_field_of_caffe():
    ours = {(message.name, field.name): field for message in schema_file().message_type for field in message.field}
    rows, _ = table()
    for row in rows:
        key = (row["message"], row["field"])
        field = ours.pop(key)
        assert field.number == RENUMBERED.get(key, int(row["number"])), key
        assert FIELD_TYPES.Label.Name(field.label) == "LABEL_" + row["label"].upper(), key
        assert type_name(field) == row["type"], key
        assert same_default(field.default_value, row["default"], row["type"]), key
        assert field.options.packed == (row["packed"] == "packed"), key
    known, forks = {row["message"] for row in rows}, {}
    for row in dialects()[0]:
        forks.setdefault((row["message"], row["field"]), []).append(row)
    for key, field in ours.items():
        numbers = [int(row["number"]) for row in forks.get(key, ())]
        assert field.number >= 1000 or field.number in numbers or key[0] not in known, key
        if key in forks and key[0] in known:
            row = forks[key][0]
            assert type_name(field).rpartition(".")[2] == row["type"], key
            assert FIELD_TYPES.Label.Name(field.label) == "LABEL_" + row["label"].upper(), key
            assert same_default(field.default_value, row["default"], row["type"]), key


@needs_shared(DIALECTS)
def test_every_field_of_the_forks():
    ours = {(message.name, field.name) for message in schema_file().message_type for field in message.field}
    ours |= {
        (f"{message.name}.{nested.name}", field.name)
        for message in schema_file().message_type
        for nested in message.nested_type
        for field in nested.field
    }
    missing = {(row["message"], row["field"]) for row in dialects()[0]} - ours
    assert {message for message, _ in missing} == {"C2TensorProto", "C2TensorProtos"}  # messages in files of Caffe2


@needs_shared(TABLE)
def test_every_enum_of_caffe():
    file = schema_file()
    ours = {(enum.name, value.name): value.number for enum in file.enum_type for value in enum.value}
    for message in file.message_type:
        for enum in message.enum_type:
            ours |= {(f"{message.name}.{enum.name}", value.name): value.number for value in enum.value}
    _, rows = table()
    messages = {row["enum"].partition(".")[0] for row in rows}
    ours = {key: n for key, n in ours.items() if key[0].partition(".")[0] in messages and key[0] not in OWN_ENUMS}
    table_of_caffe = {(row["enum"], row["value"]): int(row["number"]) for row in rows}
    assert table_of_caffe.items() <= ours.items()
    forks = dialects()[1]
    assert all((*key, n) in forks or n >= 1000 for key, n in ours.items() if key not in table_of_caffe)


def test_names_of_the_module():
    assert (proto.TRAIN, proto.TEST) == (0, 1)
    layer = proto.LayerParameter(name="x")
    assert layer.convolution_param.bias_term and layer.convolution_param.group == 1
    assert proto.PoolingParameter.AVE == 1
    assert proto.REQUIRED["ClipParameter"] == ["min", "max"]


@pytest.mark.parametrize("field, dtype", [("data", "<f4"), ("diff", "<f4"), ("double_data", "<f8")])
def test_raw_is_the_same_on_the_wire(field, dtype):
    values = np.arange(6, dtype=dtype) / 4
    plain = proto.BlobProto()
    plain.shape.dim.extend([2, 3])
    getattr(plain, field).extend(values)
    raw = proto.raw.BlobProto.FromString(plain.SerializeToString())
    assert b"".join(getattr(raw, field)) == values.tobytes()
    assert proto.BlobProto.FromString(raw.SerializeToString()) == plain
