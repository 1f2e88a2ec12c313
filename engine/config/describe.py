"""Describes a layer by the fields of its message, for tables and drawings."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from engine import proto

# Messages that say where data comes from, and not what the layer does.
_SOURCES = ("transform_param", "data_param", "image_data_param", "hdf5_data_param", "window_data_param", "include")


def options(message: proto.LayerParameter) -> Iterator[str]:
    """Yields the fields of a layer's parameters but those of data and fillers: "num_output 64", "kernel_size 7"."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.has_presence and field.name not in _SOURCES:
            yield from _scalars(value)


def _scalars(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            continue
        values = [value] if field.has_presence else list(value)
        if field.enum_type is not None:
            values = [field.enum_type.values_by_number[number].name for number in values]
        yield f"{field.name} {' '.join(_text(each) for each in values)}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
