"""Upgrades fields that have another name today."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from engine.config.dialects import possessive, rows
from engine.config.prototext import Node, where_of
from engine.errors import ConfigError


@dataclass(frozen=True)
class Renamed:
    """A field that has another name today, in the same message.

    implied: another field of the message, and the value that the old name implies for it.
    zero_is_off: whether a 0 in the old field is the same as no such field."""

    old: str
    new: str
    implied: tuple[str, str | bool] | None = None
    zero_is_off: bool = False


# By the parameter of a layer that has them.
RENAMED_OF_LAYERS = {
    "concat_param": (Renamed("concat_dim", "axis"),),
    "slice_param": (Renamed("slice_dim", "axis"),),
    "transform_param": (
        Renamed("var_sz_img_rand_resize_lower", "img_rand_resize_lower", zero_is_off=True),
        Renamed("var_sz_img_rand_resize_upper", "img_rand_resize_upper", zero_is_off=True),
        Renamed("var_sz_img_rand_crop", "crop_size", zero_is_off=True),
        Renamed("var_sz_img_center_crop", "crop_size", ("center_crop", True), zero_is_off=True),
    ),
}
RENAMED_OF_SOLVERS = (
    Renamed("rampup_interval", "warmup_iter", ("warmup_policy", "quadratic")),
    Renamed("rampup_lr", "warmup_start_lr", ("warmup_policy", "quadratic")),
)


def rename(message: Message, renamed: Renamed, label: str, origin: Node | None) -> None:
    """Moves the value of a field to its name of today. label, origin: as in copy_field(). Raises ConfigError if both
    names are given."""
    old, new = renamed.old, renamed.new
    if not message.HasField(old):
        return
    value = getattr(message, old)
    message.ClearField(old)
    if renamed.zero_is_off and not value:
        return
    if message.HasField(new):
        fork = rows().get((message.DESCRIPTOR.name, old))
        whose = possessive(fork.forks) if fork else "the older"
        raise ConfigError(f"{label}both '{new}' and {whose} '{old}' are given; keep '{new}'", where_of(origin))
    copy_field(message, new, value, label, origin)
    if renamed.implied:
        copy_field(message, *renamed.implied, label, origin)


def copy_field(message: Message, path: str, value: object, label: str, origin: Node | None) -> None:
    """Sets message.a.b to a value for the path "a.b", whatever the kind of the field; a repeated field grows by it.

    label: what comes first in error messages. origin: where the value stands in the text. Raises ConfigError if the
    field cannot hold the value."""
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    field = message.DESCRIPTOR.fields_by_name[name]
    try:
        if not field.has_presence:
            values = value if hasattr(value, "extend") else [value]
            getattr(message, name).extend(values)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError):
        raise ConfigError(f"{label}'{name}', its name today, cannot hold {value}", where_of(origin)) from None
