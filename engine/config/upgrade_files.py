"""Nets, weights and solvers of older formats, written in the current one: Caffe's upgrade_net_proto_text,
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
    """Writes a net's prototxt in the current format, without comments; returns a line for each older format met. The
    layers stay those of the file, whatever stands in for them here.

    Raises ConfigError, EngineError.
    """
    config = read_net_as_written(source)
    write_text(target, config.message)
    return config.notes


def upgrade_net_binary(source: str, target: str) -> list[str]:
    """The same for a caffemodel (or a net in binary); blobs are taken over as they are. Raises also WeightsError, of
    files of C3D, too, whose types of layers have other numbers."""
    net = read_message(source, proto.raw.NetParameter, "caffemodel")
    if any(c3d_width(blob) is not None for layer in net.layers for blob in layer.blobs):
        raise WeightsError(
            "a file of Facebook's C3D, which numbers layers and fields otherwise; expected another one: weights of C3D "
            "are read as they are, with the net's text",
            source,
        )
    try:
        message = cast("proto.NetParameter", net)  # whose blobs, which differ, are moved as they are
        origins, notes = upgrade_net(message)
        notes += upgrade_intels_norms(message, origins)
    except ConfigError as error:
        raise ConfigError(str(error), source) from None
    write_message(target, net)
    return [f"{source}: {note}" for note in notes]


def upgrade_solver_text(source: str, target: str) -> list[str]:
    """The same for a solver: solver_type becomes type. The nets that it names stay as they are."""
    config = read_solver(source)
    write_text(target, config.message)
    return config.notes


def write_text(path: str | os.PathLike, message: Message) -> None:
    """Writes a message as text. Raises EngineError if the file cannot be written."""
    with atomic_write(path) as file:
        file.write(text_format.MessageToString(message).encode())
