"""Reads weights and solver states in the format that a file has, and writes them in the format that its name asks
for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.errors import WeightsError
from engine.files import opened, reason
from engine.weights import hdf5, protobuf
from engine.weights.state import SolverState

if TYPE_CHECKING:
    from hashlib import _Hash

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The numbers of a state that others are computed from: the least that each may be, and what it must be below.
_RANGES = {
    **dict.fromkeys(("iteration", "current_step", "iter_last_event", "max_iter"), (0, 2**31)),
    **dict.fromkeys(("best_iteration", "tests_without_gain", "last_judged"), (0, 2**31)),
    **dict.fromkeys(("ranks", "global_batch"), (1, 2**31)),
    "samples_seen": (0, 2**63),
}


def read_caffemodel(path: str | os.PathLike) -> dict[str, list[np.ndarray | None]]:
    """Returns the parameter blobs of each layer that has any: float32, writable, in Caffe's shapes.

    It reads the current format, V0, V1 and HDF5. Blobs of files before 2015 have four axes, those of C3D five, with
    leading axes of 1 where they have fewer. None stands for a blob that Caffe left out of an HDF5 file because another
    layer has it, too. Raises WeightsError for a file that is missing, truncated or something else.
    """
    with _memory_of(path):
        return _format_of(path).read_caffemodel(path)


def write_caffemodel(
    path: str | os.PathLike,
    net: proto.NetParameter,
    blobs: Mapping[str, Sequence[np.ndarray]],
    digest: _Hash | None = None,
) -> None:
    """Writes the layers of a NetParameter with their parameter blobs.

    Args:
        blobs: by layer name.
        digest: a hash that is updated with the bytes of the file.

    Raises WeightsError for blobs of a layer that the net does not have, EngineError if the file cannot be written.
    """
    unknown = set(blobs) - {layer.name for layer in net.layer}
    if unknown:
        raise WeightsError(f"blobs of layers that are not in the net: {', '.join(sorted(unknown))}", str(path))
    _format_for(path).write_caffemodel(path, net, blobs, digest)


def read_solverstate(path: str | os.PathLike) -> SolverState:
    """Returns the state that Caffe or this engine wrote. Raises WeightsError for a file that is missing, truncated or
    something else."""
    with _memory_of(path):
        state = _format_of(path).read_solverstate(path)
    for name, (least, below) in _RANGES.items():
        value = getattr(state, name)
        if value is not None and not least <= value < below:
            raise WeightsError(f"{name} {value}, expected {least} to {below - 1}", str(path))
    for name in ("test_samples", "kept_snapshots"):
        values = getattr(state, name)
        if not all(0 <= value < 2**63 and value == int(value) for value in values):  # `in range()` would be slow
            raise WeightsError(f"{name} {values}, expected whole numbers of 0 or more", str(path))
        setattr(state, name, [int(value) for value in values])
    return state


def write_solverstate(path: str | os.PathLike, state: SolverState) -> None:
    """Writes a state that Caffe reads, too. Raises EngineError if the file cannot be written."""
    _format_for(path).write_solverstate(path, state)


@contextlib.contextmanager
def _memory_of(path: str | os.PathLike) -> Iterator[None]:
    """Raises WeightsError, which names the file, if memory does not suffice in the block."""
    try:
        yield
    except MemoryError as error:
        raise WeightsError(f"cannot be read: {reason(error)}", str(path)) from None


def _format_of(path: str | os.PathLike):
    """Returns the module that reads a file."""
    return hdf5 if is_hdf5(path) else protobuf


def _format_for(path: str | os.PathLike):
    """Returns the module that writes a file of this name."""
    return hdf5 if str(path).endswith(".h5") else protobuf


def is_hdf5(path: str | os.PathLike) -> bool:
    """Returns whether a file begins as HDF5 files do. Raises WeightsError if it cannot be read."""
    with opened(path, WeightsError) as file:
        return file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE
