"""Weights and solver states in HDF5, laid out as BVLC's Caffe does (snapshot_format: HDF5).

model: data/<layer>/<index of the blob>. state: iter, learned_net, current_step, history/<index>, and what only this
engine writes under the names of SolverState's fields.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engine import proto
from engine.errors import EngineError, WeightsError
from engine.files import atomic_path
from engine.weights.state import SolverState, state_fields

_DATA, _HISTORY = "data", "history"
_TEXT_FIELDS = ("learned_net", "digest")
_INT32_FIELDS = ("iter", "current_step", "iter_last_event")  # Caffe reads these as int


def _h5py(path: str | os.PathLike):
    try:
        import h5py
    except ImportError:
        raise EngineError(
            "HDF5 files need h5py: pip install engine[hdf5] (or --set snapshot_format=BINARYPROTO to write others)",
            str(path),
        ) from None
    return h5py


@contextlib.contextmanager
def _reading(path: str | os.PathLike, word: str) -> Iterator:
    h5py = _h5py(path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].strip("'\"")
        raise WeightsError(f"truncated or not a {word} ({reason})", str(path)) from None


@contextlib.contextmanager
def _writing(path: str | os.PathLike) -> Iterator:
    h5py = _h5py(path)
    with atomic_path(path) as temporary:
        try:
            with h5py.File(temporary, "w") as file:
                yield file
        except RuntimeError as error:  # h5py's other word for a write that failed
            raise OSError(str(error)) from None


def _array(dataset) -> np.ndarray:
    return np.asarray(dataset[()], np.float32)


def read_caffemodel(path: str | os.PathLike) -> dict[str, list[np.ndarray | None]]:
    """See engine.weights.files.read_caffemodel()."""
    blobs: dict[str, list[np.ndarray | None]] = {}

    def collect(group, name: str) -> None:
        stored = {int(member): group[member] for member in group if not hasattr(group[member], "keys")}
        if stored:
            blobs[name] = [_array(stored[i]) if i in stored else None for i in range(max(stored) + 1)]
        for member in group:  # a layer whose name has a slash is a group within a group
            if hasattr(group[member], "keys"):
                collect(group[member], f"{name}/{member}" if name else member)

    with _reading(path, "caffemodel") as file:
        collect(file[_DATA], "")
    return blobs


def write_caffemodel(
    path: str | os.PathLike, net: proto.NetParameter, blobs: Mapping[str, Sequence[np.ndarray]]
) -> None:
    """See engine.weights.files.write_caffemodel()."""
    with _writing(path) as file:
        data = file.create_group(_DATA)
        for layer in net.layer:
            group = data.require_group(layer.name)
            for index, array in enumerate(blobs.get(layer.name, ())):
                group.create_dataset(str(index), data=np.asarray(array, np.float32))


def read_solverstate(path: str | os.PathLike) -> SolverState:
    """See engine.weights.files.read_solverstate()."""
    with _reading(path, "solverstate") as file:
        history = file[_HISTORY]
        state = SolverState(history=[_array(history[str(index)]) for index in range(len(history))])
        file["iter"]  # the one that every state has
        for name, stored in state_fields():
            if stored not in file:
                continue
            value = file[stored][()]
            if name in _TEXT_FIELDS:
                setattr(state, name, bytes(value).rstrip(b"\0").decode())
            elif isinstance(getattr(state, name), list):
                setattr(state, name, [float(item) for item in value])
            else:
                setattr(state, name, np.ravel(value)[0].item())
    return state


def write_solverstate(path: str | os.PathLike, state: SolverState) -> None:
    """See engine.weights.files.write_solverstate()."""
    with _writing(path) as file:
        for name, stored in state_fields():
            value = getattr(state, name)
            if value is None:
                continue
            if name in _TEXT_FIELDS:
                _write_text(file, stored, value)
            elif isinstance(value, list):
                file.create_dataset(stored, data=np.array(value, np.float64))
            else:
                dtype = np.int32 if stored in _INT32_FIELDS else np.int64 if isinstance(value, int) else np.float64
                file.create_dataset(stored, data=np.array([value], dtype))
        history = file.create_group(_HISTORY)
        for index, array in enumerate(state.history):
            history.create_dataset(str(index), data=np.asarray(array, np.float32))


def _write_text(file, name: str, text: str) -> None:
    """A string of fixed length that ends in a zero byte, for Caffe reads it into an array of that length."""
    h5py = _h5py(file.filename)
    content = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content, f"S{len(content)}"))
