"""Writes files of nets, weights and solvers of older formats in the current one, as Caffe's upgrade_net_proto_text,
upgrade_net_proto_binary and upgrade_solver_proto_text.
"""

from __future__ import annotations

import os
from typing import cast

from google.protobuf import text_format
from google.protobuf.message import Message

from engine import proto
from engine.config import read_solver
from engine.config.config import read_net_as_written
from engine.config.intels_norms import upgrade_intels_norms
from engine.config.upgrade import upgrade_net
from engine.errors import ConfigError, WeightsError
from engine.files import atomic_write
from engine.weights.protobuf import c3d_width, read_message, write_message


def upgrade_net_text(source: str, target: str) -> list[str]:
    """Writes a net's prototxt in the current format, without its comments, and returns the notes on what was upgraded.

    Layers that this engine replaces or leaves out stay as in the file. Raises ConfigError if `source` cannot be read,
    EngineError if `target` cannot be written.
    """
    config = read_net_as_written(source)
    write_text(target, config.message)
    return config.notes


def upgrade_net_binary(source: str, target: str) -> list[str]:
    """Writes a caffemodel (or a net in binary) in the current format, its blobs as they are, and returns the notes.

    Raises ConfigError, EngineError and WeightsError, also for files of C3D, whose layer types have other numbers."""
    net = read_message(source, proto.raw.NetParameter, "caffemodel")
    if any(c3d_width(blob) is not None for layer in net.layers for blob in layer.blobs):
        raise WeightsError(
            "a file of Facebook's C3D, which numbers layers and fields otherwise; expected another one: weights of C3D "
            "are read as they are, with the net's text",
            source,
        )
    try:
        message = cast("proto.NetParameter", net)  # the types differ in blobs alone, which are moved whole
        origins, notes = upgrade_net(message)
        notes += upgrade_intels_norms(message, origins)
    except ConfigError as error:
        raise ConfigError(str(error), source) from None
    write_message(target, net)
    return [f"{source}: {note}" for note in notes]


def upgrade_solver_text(source: str, target: str) -> list[str]:
    """Writes a solver in the current format, where solver_type is type, and returns the notes. The nets that it names
    stay as they are. Raises as upgrade_net_text()."""
    config = read_solver(source)
    write_text(target, config.message)
    return config.notes


def write_text(path: str | os.PathLike, message: Message) -> None:
    """Writes a message as text. Raises EngineError if the file cannot be written."""
    with atomic_write(path) as file:
        file.write(text_format.MessageToString(message).encode())
