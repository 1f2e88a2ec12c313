"""Weights and solver states as BVLC's Caffe stores them by default: protobuf messages."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from engine import proto
from engine.errors import WeightsError, shape_text
from engine.files import atomic_write, is_regular, read_bytes
from engine.weights.shapes import checked_shape
from engine.weights.state import SolverState, state_fields

if TYPE_CHECKING:
    from hashlib import _Hash

MessageT = TypeVar("MessageT", bound=Message)
AnyT = TypeVar("AnyT")
PROTOBUF_LIMIT = 2**31 - 1  # bytes of a message; HDF5 has none
# Messages within a message: a layer may take 3 bytes in a file and 1.3 KB in memory. Inception-ResNet v2 has 10,000.
_MOST_MESSAGES = 200_000
_RAW_TYPES = {proto.DOUBLE: "<f8", proto.FLOAT: "<f4", proto.FLOAT16: "<f2"}
_LEGACY_AXES = ("num", "channels", "height", "width")


def read_caffemodel(path: str | os.PathLike) -> dict[str, list[np.ndarray | None]]:
    """See engine.weights.files.read_caffemodel(); formats V0 and V1 as well as the current one."""
    net = read_message(path, proto.raw.NetParameter, "caffemodel")
    blobs = {}
    for layer in [*net.layer, *net.layers]:
        is_v0 = layer.DESCRIPTOR.name == "V1LayerParameter" and layer.HasField("layer")
        name = _text(layer.layer.name if is_v0 else layer.name)
        stored = [*layer.blobs, *layer.layer.blobs] if is_v0 else layer.blobs
        if stored:
            blobs[name] = [
                _named(path, f"layer '{name}', blob {index}", blob_array, blob) for index, blob in enumerate(stored)
            ]
    if not net.layer and not net.layers:
        raise WeightsError("not a caffemodel (it has no layers)", str(path))
    return blobs


def write_caffemodel(
    path: str | os.PathLike,
    net: proto.NetParameter,
    blobs: Mapping[str, Sequence[np.ndarray]],
    digest: _Hash | None = None,
) -> None:
    """See engine.weights.files.write_caffemodel(). Raises WeightsError for more than PROTOBUF_LIMIT bytes."""
    message = proto.raw.NetParameter.FromString(net.SerializePartialToString())
    # All layers of a name alike: Caffe looks up each by name, and expects that layer's blobs of it.
    for layer in message.layer:
        layer.ClearField("blobs")
        for array in blobs.get(layer.name, ()):
            fill_blob(layer.blobs.add(), array)
    write_message(path, message, digest)


def read_solverstate(path: str | os.PathLike) -> SolverState:
    """See engine.weights.files.read_solverstate()."""
    message = read_message(path, proto.raw.SolverState, "solverstate")
    if not message.HasField("iter"):
        raise WeightsError("not a solverstate (it has no iteration)", str(path))
    state = SolverState(
        history=[_named(path, f"history {index}", blob_array, blob) for index, blob in enumerate(message.history)]
    )
    for name, stored, kind in state_fields():
        present = not message.DESCRIPTOR.fields_by_name[stored].has_presence or message.HasField(stored)
        if present:
            value = getattr(message, stored)
            setattr(state, name, list(value) if kind is list else _text(value))
    return state


def write_solverstate(path: str | os.PathLike, state: SolverState) -> None:
    """See engine.weights.files.write_solverstate(). Raises WeightsError for more than PROTOBUF_LIMIT bytes."""
    message = proto.raw.SolverState()
    for name, stored, kind in state_fields():
        value = getattr(state, name)
        if kind is list:
            getattr(message, stored).extend(value)
        elif value is not None:
            setattr(message, stored, value)
    for array in state.history:
        fill_blob(message.history.add(), array)
    write_message(path, message)


def read_blob(path: str | os.PathLike) -> np.ndarray:
    """Returns the array (float32) of a file that is one BlobProto, a "binaryproto". Raises WeightsError if it is
    none."""
    return _named(path, "blob", blob_array, read_message(path, proto.raw.BlobProto, "binaryproto"))


def fits_protobuf(values: int, blobs: int, text: int = 0) -> bool:
    """Returns whether a protobuf message can hold so many float32 values in so many blobs, plus `text` bytes of other
    data."""
    return 4 * values + 128 * blobs + text <= PROTOBUF_LIMIT


def blob_array(blob: proto.raw.BlobProto) -> np.ndarray:
    """Returns the data of a blob: float32, writable, in its shape; converted if it holds doubles or float16.

    Raises WeightsError if the number of values is not that of the shape, or no blob has such a shape.
    """
    width = c3d_width(blob)
    if width is not None:
        shape = (blob.num, blob.channels, blob.height or 1, blob.width, width)
    elif blob.HasField("shape"):
        shape = tuple(blob.shape.dim)
    elif any(blob.HasField(axis) for axis in _LEGACY_AXES):
        shape = tuple(getattr(blob, axis) for axis in _LEGACY_AXES)
    else:
        shape = None  # a plain list
    if shape is not None:
        try:
            checked_shape(shape)
        except ValueError as error:
            raise WeightsError(str(error)) from None
    if width is not None:
        data, dtype = blob.diff, "<f4"
    elif blob.HasField("raw_data"):  # NVIDIA's
        if blob.raw_data_type not in _RAW_TYPES:
            raise WeightsError(f"values of type {blob.raw_data_type} in raw_data; expected float, double or float16")
        data, dtype = [blob.raw_data], _RAW_TYPES[blob.raw_data_type]
    else:
        data, dtype = (blob.data, "<f4") if blob.data or not blob.double_data else (blob.double_data, "<f8")
    content = b"".join(data)
    values = np.frombuffer(content[: len(content) // int(dtype[2]) * int(dtype[2])], dtype)
    if shape is not None and values.size != math.prod(shape):
        values = values if width is not None or blob.HasField("raw_data") else _unpacked(blob)
        if values.size != math.prod(shape):
            raise WeightsError(f"{values.size} values for the shape {shape_text(shape)}")
    return values.astype(np.float32).reshape(shape if shape is not None else -1)


def c3d_width(blob: proto.BlobProto | proto.raw.BlobProto) -> int | None:
    """Returns the width of a blob that Facebook's C3D wrote; None for any other blob.

    C3D's message has a field for the length of clips before height and width, so that all later fields have numbers one
    above those here. Such a blob has its length in `height`, its height in `width` and its values in `diff`; its width,
    a number where values are expected, is an unknown field."""
    if blob.data or not blob.HasField("num"):
        return None
    return next((each.data for each in UnknownFieldSet(blob) if each.field_number == 5 and each.wire_type == 0), None)


def _unpacked(blob: proto.raw.BlobProto) -> np.ndarray:
    """Returns the values of a blob that has them one by one, from a writer that does not heed `packed`."""
    try:
        plain = proto.BlobProto.FromString(blob.SerializeToString())
    except DecodeError:
        raise WeightsError("its values are no whole number of floats") from None
    return np.array(plain.data or plain.double_data, np.float64)


def fill_blob(blob: proto.raw.BlobProto, array: np.ndarray) -> None:
    """Sets an empty blob to an array's shape and its values as float32."""
    blob.shape.dim.extend(array.shape)
    blob.shape.SetInParent()  # also for an array without axes
    blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def _text(value: AnyT) -> AnyT | str:
    """Returns a field's value. A string that is not UTF-8, which protobuf gives as bytes, is decoded like a file's
    name."""
    return os.fsdecode(value) if isinstance(value, bytes) else value


def _named(
    path: str | os.PathLike, what: str, read: Callable[[proto.raw.BlobProto], np.ndarray], blob: proto.raw.BlobProto
) -> np.ndarray:
    try:
        return read(blob)
    except WeightsError as error:
        raise WeightsError(f"{what}: {error}", str(path)) from None


def read_message(path: str | os.PathLike, kind: type[MessageT], word: str) -> MessageT:
    """Reads a binary message of type `kind`. word: what to call it in errors. Raises WeightsError."""
    if is_regular(path) and (size := os.path.getsize(path)) > PROTOBUF_LIMIT:
        raise WeightsError(f"not a {word}: {size} bytes, a message has at most {PROTOBUF_LIMIT}", str(path))
    content = read_bytes(path, WeightsError)
    if not content:
        raise WeightsError(f"truncated or not a {word} (0 bytes)", str(path))
    if _has_too_many_messages(content, cast("Descriptor", kind.DESCRIPTOR)):
        raise WeightsError(f"not a {word}: it has more than {_MOST_MESSAGES} layers, blobs and the like", str(path))
    try:
        return kind.FromString(content)
    except DecodeError:
        raise WeightsError(f"truncated or not a {word} ({len(content)} bytes)", str(path)) from None


def _has_too_many_messages(content: bytes, descriptor: Descriptor) -> bool:
    """Returns whether a message has more than _MOST_MESSAGES messages within it. It reads no values, only their
    lengths. Of damage it says nothing: protobuf will."""
    count, waiting = 0, [(0, len(content), descriptor)]
    while waiting:
        at, end, descriptor = waiting.pop()
        inner = _messages_in(descriptor)
        try:
            while at < end:
                tag, at = _varint(content, at)
                number, wire_type = tag >> 3, tag & 7
                if wire_type == 0:
                    _, at = _varint(content, at)
                elif wire_type == 2:
                    length, at = _varint(content, at)
                    if number in inner:
                        count += 1
                        if count > _MOST_MESSAGES:
                            return True
                    if length and (kind := inner.get(number)) is not None:
                        waiting.append((at, min(at + length, end), kind))
                    at += length
                else:  # a group, which no fork has, counts as the fields in it
                    at += {1: 8, 5: 4}.get(wire_type, 0)
        except IndexError:
            continue
    return False


@functools.cache
def _messages_in(descriptor: Descriptor) -> dict[int, Descriptor | None]:
    """Returns the numbers of a message's fields that are messages. The value is the field's type if that may hold any
    number of messages, else None: such a field is counted but not looked into. Blobs are among these, and may have
        their
    values one by one."""
    inner = {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
    return {number: kind if any(map(_is_repeated_message, kind.fields)) else None for number, kind in inner.items()}


def _is_repeated_message(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not field.has_presence


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Returns the number whose bytes begin at `at`, and where they end. Raises IndexError if they do not end."""
    value = 0
    for index in range(10):
        byte = content[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise IndexError


def write_message(path: str | os.PathLike, message: Message, digest: _Hash | None = None) -> None:
    """Writes a message in binary. Raises WeightsError if it is too large, EngineError if the file cannot be written."""
    try:
        content = message.SerializePartialToString()
    except (EncodeError, ValueError) as error:
        raise WeightsError(
            f"cannot be written ({error}); snapshot_format: HDF5 has no limit of 2 GB", str(path)
        ) from None
    with atomic_write(path, digest) as file:
        file.write(content)
