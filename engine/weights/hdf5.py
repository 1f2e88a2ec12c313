"""Weights and solver states in HDF5, laid out as BVLC's Caffe does (snapshot_format: HDF5).

A model holds data/<layer>/<index of the blob>. A layer whose name cannot be a path in HDF5, such as /conv1, has a group
of another name, whose attribute `name` has the layer's. A state holds iter, learned_net, current_step, history/<index>,
and what only this engine writes, under the names of SolverState's fields.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from engine import proto
from engine.errors import EngineError, WeightsError
from engine.files import atomic_path
from engine.weights.h5_file import H5File, import_h5py
from engine.weights.state import SolverState, state_fields

if TYPE_CHECKING:
    from hashlib import _Hash

_DATA, _HISTORY, _NAME = "data", "history", "name"
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")  # of a blob in its layer
_INT32_FIELDS = ("iter", "current_step", "iter_last_event")  # Caffe reads these as int


def _h5py(path: str | os.PathLike) -> ModuleType:
    return import_h5py("HDF5 files (snapshot_format=BINARYPROTO writes others) need", EngineError, str(path))


def _reading(path: str | os.PathLike, word: str) -> H5File:
    fail = functools.partial(_fault, path, word)
    return H5File(_h5py(path), path, fail)


def _fault(path: str | os.PathLike, word: str, reason: str) -> WeightsError:
    return WeightsError(f"truncated or not a {word} ({reason})", str(path))


@contextlib.contextmanager
def _writing(path: str | os.PathLike, digest: _Hash | None = None) -> Iterator:
    h5py = _h5py(path)
    with atomic_path(path, digest) as temporary:
        try:
            with h5py.File(temporary, "x") as file:
                yield file
        except EngineError:
            raise
        except RuntimeError as error:  # h5py raises this, too, if a write fails
            raise OSError(str(error)) from None


def read_caffemodel(path: str | os.PathLike) -> dict[str, list[np.ndarray | None]]:
    """See engine.weights.files.read_caffemodel()."""
    blobs: dict[str, list[np.ndarray | None]] = {}
    with _reading(path, "caffemodel") as file:
        for group, names in file.walk(_DATA):  # a layer whose name has a slash is a group within a group
            layer = file.attribute(group, _NAME)
            if layer is None:
                layer = group.removeprefix(_DATA).removeprefix("/")
            for name in names:
                if not _INDEX.fullmatch(name):
                    raise _fault(path, "caffemodel", f"layer '{layer}' has a blob '{name}', expected 0, 1 ...")
            stored = {int(name): file.numbers(f"{group}/{name}") for name in names}
            if stored:
                blobs[layer] = [stored.get(index) for index in range(max(stored) + 1)]
    return blobs


def write_caffemodel(
    path: str | os.PathLike,
    net: proto.NetParameter,
    blobs: Mapping[str, Sequence[np.ndarray]],
    digest: _Hash | None = None,
) -> None:
    """See engine.weights.files.write_caffemodel()."""
    with _writing(path, digest) as file:
        data = file.create_group(_DATA)
        for name in dict.fromkeys(layer.name for layer in net.layer):  # several layers may have one name
            path = _path(name)
            group = data.require_group(path)
            if path != name:
                group.attrs[_NAME] = name
            for index, array in enumerate(blobs.get(name, ())):
                group.create_dataset(str(index), data=np.asarray(array, np.float32))


def _path(layer: str) -> str:
    """Returns the name of a layer's group in `data`: the layer's own, quoted where HDF5 would read it as another. It
    takes "/a" for the file's own "a", and "a//b", "./a/b" and "a/b/" for "a/b"."""
    is_path = all(word not in ("", ".") for word in layer.split("/"))
    return layer if is_path else "%" + quote(layer, safe="")


def read_solverstate(path: str | os.PathLike) -> SolverState:
    """See engine.weights.files.read_solverstate()."""
    with _reading(path, "solverstate") as file:
        state = SolverState()
        state.history = [file.numbers(f"{_HISTORY}/{index}") for index in range(len(file.names(_HISTORY)))]
        for name, stored, kind in state_fields():
            if stored != "iter" and not file.has(stored):  # every state has iter: without it the reading fails
                continue
            if kind is str:
                setattr(state, name, file.text(stored))
            elif kind is float:
                setattr(state, name, file.number(stored))
            elif kind is list:
                setattr(state, name, _list(file.numbers(stored, np.float64), stored, path))
            else:
                setattr(state, name, file.whole(stored))
    return state


def _list(values: np.ndarray, stored: str, path: str | os.PathLike) -> list[float]:
    if values.ndim != 1:
        raise _fault(path, "solverstate", f"'{stored}' is no list")
    return values.tolist()


def write_solverstate(path: str | os.PathLike, state: SolverState) -> None:
    """See engine.weights.files.write_solverstate()."""
    with _writing(path) as file:
        for name, stored, kind in state_fields():
            value = getattr(state, name)
            if value is None:
                continue
            if kind is str:
                _write_text(file, stored, value)
            elif kind is list:
                file.create_dataset(stored, data=np.array(value, np.float64))
            else:
                dtype = np.int32 if stored in _INT32_FIELDS else np.int64 if kind is int else np.float64
                file.create_dataset(stored, data=np.array([value], dtype))
        history = file.create_group(_HISTORY)
        for index, array in enumerate(state.history):
            history.create_dataset(str(index), data=np.asarray(array, np.float32))


def _write_text(file, name: str, text: str) -> None:
    """Writes a string of fixed length that ends in a zero byte: Caffe reads it into an array of that length."""
    h5py = _h5py(file.filename)
    content = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(content))
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(content, f"S{len(content)}"))
