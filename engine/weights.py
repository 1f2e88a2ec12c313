"""Reads and writes weights and solver states in the format of BVLC's Caffe, whole or not at all.

    blobs = read_caffemodel("x.caffemodel")              # {"conv1": [float32 (20, 1, 5, 5), float32 (20,)], ...}
    write_caffemodel("y.caffemodel", net.message, blobs)
    state = read_solverstate("x.solverstate")            # SolverState

A name that ends in .h5 is written in HDF5; files are read by what is in them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, EncodeError, Message

from engine import proto
from engine.errors import WeightsError
from engine.files import atomic_write

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
PROTOBUF_LIMIT = 2**31 - 1  # bytes of a message; HDF5 has none
_LEGACY_AXES = ("num", "channels", "height", "width")


@dataclass
class SolverState:
    """What training goes on from, besides the weights.

    history: float32 arrays, one for each parameter; Adam and AdaDelta have a second set after the first.
    The fields from random_seed on are this engine's own, None or empty in a state that Caffe wrote.
    """

    iteration: int = 0
    learned_net: str = ""
    history: list[np.ndarray] = field(default_factory=list)
    current_step: int = 0
    minimum_loss: float = 1e38
    iter_last_event: int = 0
    random_seed: int | None = None
    ranks: int | None = None
    samples_seen: int | None = None  # position in the global sequence of samples
    recent_loss: list[float] = field(default_factory=list)  # the window of average_loss, oldest first
    last_rate: float | None = None  # learning rate of the last update
    global_batch: int | None = None  # samples in an iteration of all ranks
    digest: str | None = None  # of the files: see engine.solver.resume


# SolverState's names, where they are not the file's.
_RENAMED = {"iteration": "iter"}
_ARRAYS = ("history",)


def read_caffemodel(path: str | os.PathLike) -> dict[str, list[np.ndarray | None]]:
    """Layer name -> its parameter blobs (float32, writable, in Caffe's shapes), for the layers that have any.

    Reads the current format, V0, V1 and HDF5. Blobs of files before 2015 have four axes, leading ones included. None
    is a blob that Caffe left out of an HDF5 file because it belongs to another layer, too.
    Raises WeightsError for a file that is missing, truncated or something else.
    """
    if is_hdf5(path):
        from engine import weights_hdf5

        return weights_hdf5.read_caffemodel(path)
    net = read_message(path, proto.raw.NetParameter, "caffemodel")
    blobs = {}
    for layer in [*net.layer, *net.layers]:
        is_v0 = layer.DESCRIPTOR.name == "V1LayerParameter" and layer.HasField("layer")
        name = layer.layer.name if is_v0 else layer.name
        stored = [*layer.blobs, *layer.layer.blobs] if is_v0 else layer.blobs
        if stored:
            blobs[name] = [
                _named(path, f"layer '{name}', blob {index}", blob_array, blob) for index, blob in enumerate(stored)
            ]
    if not net.layer and not net.layers:
        raise WeightsError("not a caffemodel (it has no layers)", str(path))
    return blobs


def write_caffemodel(path: str | os.PathLike, net: Message, blobs: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Writes the layers of a NetParameter with their parameter blobs.

    Raises WeightsError for blobs of a layer that the net does not have, EngineError if the file cannot be written.
    """
    unknown = set(blobs) - {layer.name for layer in net.layer}
    if unknown:
        raise WeightsError(f"blobs of layers that are not in the net: {', '.join(sorted(unknown))}", str(path))
    if str(path).endswith(".h5"):
        from engine import weights_hdf5

        weights_hdf5.write_caffemodel(path, net, blobs)
        return
    message = proto.raw.NetParameter.FromString(net.SerializePartialToString())
    for layer in message.layer:
        layer.ClearField("blobs")
        for array in blobs.get(layer.name, ()):
            fill_blob(layer.blobs.add(), array)
    write_message(path, message)


def read_solverstate(path: str | os.PathLike) -> SolverState:
    """The state that Caffe or this engine wrote. Raises WeightsError for a file that is missing, truncated or else."""
    if is_hdf5(path):
        from engine import weights_hdf5

        return weights_hdf5.read_solverstate(path)
    message = read_message(path, proto.raw.SolverState, "solverstate")
    if not message.HasField("iter"):
        raise WeightsError("not a solverstate (it has no iteration)", str(path))
    state = SolverState(
        history=[_named(path, f"history {index}", blob_array, blob) for index, blob in enumerate(message.history)]
    )
    for name, stored in state_fields():
        present = not message.DESCRIPTOR.fields_by_name[stored].has_presence or message.HasField(stored)
        if present:
            value = getattr(message, stored)
            setattr(state, name, list(value) if isinstance(getattr(state, name), list) else value)
    return state


def write_solverstate(path: str | os.PathLike, state: SolverState) -> None:
    """Writes a state that Caffe reads, too. Raises EngineError if the file cannot be written."""
    if str(path).endswith(".h5"):
        from engine import weights_hdf5

        weights_hdf5.write_solverstate(path, state)
        return
    message = proto.raw.SolverState()
    for name, stored in state_fields():
        value = getattr(state, name)
        if isinstance(value, list):
            getattr(message, stored).extend(value)
        elif value is not None:
            setattr(message, stored, value)
    for array in state.history:
        fill_blob(message.history.add(), array)
    write_message(path, message)


def read_blob(path: str | os.PathLike) -> np.ndarray:
    """The array (float32) in a file of one BlobProto, a "binaryproto". Raises WeightsError if there is none."""
    return _named(path, "blob", blob_array, read_message(path, proto.raw.BlobProto, "binaryproto"))


def fits_protobuf(values: int, blobs: int, text: int = 0) -> bool:
    """Whether a protobuf message can hold so many float32 values in so many blobs, plus `text` bytes of other data."""
    return 4 * values + 128 * blobs + text <= PROTOBUF_LIMIT


def state_fields() -> list[tuple[str, str]]:
    """(name in SolverState, name in files) of all that is not an array."""
    names = [name for name in SolverState.__dataclass_fields__ if name not in _ARRAYS]
    return [(name, _RENAMED.get(name, name)) for name in names]


def blob_array(blob: Message) -> np.ndarray:
    """The data of a proto.raw.BlobProto: float32, writable, in its shape; from doubles if it holds doubles.

    Raises WeightsError if the number of values is not that of the shape.
    """
    if blob.HasField("shape"):
        shape = tuple(blob.shape.dim)
    elif any(blob.HasField(axis) for axis in _LEGACY_AXES):
        shape = tuple(getattr(blob, axis) for axis in _LEGACY_AXES)
    else:
        shape = None  # a plain list
    data, dtype = (blob.data, "<f4") if blob.data or not blob.double_data else (blob.double_data, "<f8")
    content = b"".join(data)
    values = np.frombuffer(content[: len(content) // int(dtype[2]) * int(dtype[2])], dtype)
    if shape is not None and values.size != math.prod(shape):
        values = _unpacked(blob)
        if values.size != math.prod(shape):
            raise WeightsError(f"{values.size} values for the shape {shape_text(shape)}")
    return values.astype(np.float32).reshape(shape if shape is not None else -1)


def _unpacked(blob: Message) -> np.ndarray:
    """The values of a blob that has them one by one, as a writer without `packed` would leave them."""
    plain = proto.BlobProto.FromString(blob.SerializeToString())
    return np.array(plain.data or plain.double_data, np.float64)


def fill_blob(blob: Message, array: np.ndarray) -> None:
    """Sets an empty proto.raw.BlobProto to an array's shape and its values as float32."""
    blob.shape.dim.extend(array.shape)
    blob.shape.SetInParent()  # also for an array without axes
    blob.data.append(np.ascontiguousarray(array, "<f4").tobytes())


def shape_text(shape: Sequence[int]) -> str:
    """As messages show it: (64, 3, 7, 7) -> "64 x 3 x 7 x 7", () -> "scalar"."""
    return " x ".join(map(str, shape)) or "scalar"


def is_hdf5(path: str | os.PathLike) -> bool:
    """Whether a file begins as HDF5 files do. Raises WeightsError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror}", str(path)) from None


def _named(path, what: str, read, blob: Message) -> np.ndarray:
    try:
        return read(blob)
    except WeightsError as error:
        raise WeightsError(f"{what}: {error}", str(path)) from None


def read_message(path: str | os.PathLike, kind: type[Message], word: str) -> Message:
    """Reads a binary message of type `kind`. word: what to call it in errors. Raises WeightsError."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise WeightsError(f"cannot be read: {error.strerror}", str(path)) from None
    if not content:
        raise WeightsError(f"truncated or not a {word} (0 bytes)", str(path))
    try:
        return kind.FromString(content)
    except DecodeError:
        raise WeightsError(f"truncated or not a {word} ({len(content)} bytes)", str(path)) from None


def write_message(path: str | os.PathLike, message: Message) -> None:
    """Writes it in binary. Raises WeightsError if it is too large, EngineError if the file cannot be written."""
    try:
        content = message.SerializePartialToString()
    except (EncodeError, ValueError) as error:
        raise WeightsError(
            f"cannot be written ({error}); snapshot_format: HDF5 has no limit of 2 GB", str(path)
        ) from None
    with atomic_write(path) as file:
        file.write(content)
