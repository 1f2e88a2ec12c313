"""Caffe's messages as protoc's Python module for caffe.proto names them: `from caffe.proto import caffe_pb2`."""

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from engine import proto

globals().update(
    (name, value)
    for name, value in vars(proto).items()
    if isinstance(value, int) or (isinstance(value, type) and issubclass(value, Message))
)
DESCRIPTOR = proto.NetParameter.DESCRIPTOR.file
Phase = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["Phase"])
