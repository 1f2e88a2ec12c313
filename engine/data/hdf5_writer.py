"""Writes the bottoms of HDF5Output layers to files."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.config import expand_ranks
from engine.errors import ConfigError, DataError
from engine.files import reason
from engine.weights.h5_file import Dataset, File, H5File, import_h5py

if TYPE_CHECKING:
    from engine.net import Net

NAMES = ("data", "label")  # of the datasets, one for each bottom, as Caffe calls them
_MARK = "written_by"  # the attribute by which HDF5Output layers know their files
_ENDINGS = (".h5", ".hdf5")


class HDF5Outputs:
    """The files of a net's HDF5Output layers."""

    def __init__(self):
        self._files: dict[str, HDF5Writer] = {}  # by layer

    def connect(self, net: Net, rank: int = 0, ranks: int = 1) -> None:
        """Makes the layers write their bottoms after every forward. Raises ConfigError, DataError."""
        for layer in net.sinks:
            if layer.name not in self._files:
                self._files[layer.name] = HDF5Writer(layer.message, layer.where, rank, ranks)
        net.on_forward = self._write

    def _write(self, net: Net) -> None:
        for layer in net.sinks:
            self._files[layer.name].write([net.tensors[blob].get().reshape(blob.shape) for blob in layer.bottoms])

    def close(self) -> None:
        """Closes the files; a later forward opens them again."""
        for file in self._files.values():
            file.close()


class HDF5Writer:
    """Writes the file of one HDF5Output layer. The first batch makes it anew; later ones are added, also after close().

    The net may be a stranger's and may name any file of the user. So only files that such a layer has written are
    replaced.
    """

    def __init__(self, message: proto.LayerParameter, where: str | None, rank: int = 0, ranks: int = 1):
        """Raises ConfigError if several ranks would write one file, DataError if h5py is missing or another file is in
        the way."""
        name = message.hdf5_output_param.file_name
        if ranks > 1 and "%#" not in name:
            raise ConfigError(
                f"layer '{message.name}': {ranks} ranks would write one file; put %# (the rank) into file_name", where
            )
        self._path = expand_ranks(name, rank, ranks)
        self._layer, self._where = message.name, where
        self._h5py = import_h5py("HDF5Output needs", DataError, where)
        self._file: File | None = None
        self._datasets: list[Dataset] = []  # one for each bottom
        self._is_there()  # now, rather than after the first batch

    def _is_there(self) -> bool:
        """Returns whether there is a file of an earlier run. Raises DataError if there is another file."""
        hidden = any(part.startswith(".") and part != ".." for part in PurePath(self._path).parts)
        if hidden and not self._path.endswith(_ENDINGS):  # some programs read any bytes there: ~/.profile
            raise self._error(f"is a hidden name; expected one that ends in {' or '.join(_ENDINGS)}")
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be written: {reason(error)}") from None
        if not stat.S_ISREG(found.st_mode):
            raise self._others("is no regular file")
        with H5File(self._h5py, self._path, lambda why: self._others(f"is there already, and {why}")) as file:
            if file.attribute("", _MARK) is None:
                raise self._others("is there already, and no HDF5Output layer has written it")
        return True

    def _others(self, what: str) -> DataError:
        return self._error(f"{what}: it is not replaced; move it away, or name another file")

    def _error(self, what: str) -> DataError:
        return DataError(f"layer '{self._layer}': hdf5_output_param.file_name: {self._path} {what}", self._where)

    def write(self, blobs: Sequence[np.ndarray]) -> None:
        """Adds the rows of a batch. Raises DataError."""
        try:
            if self._file is None:
                self._open(self._is_there(), blobs)
            for dataset, rows in zip(self._datasets, blobs, strict=True):
                dataset.resize(len(dataset) + len(rows), axis=0)
                dataset[-len(rows) :] = rows
        except (OSError, RuntimeError) as error:
            raise self._error(f"cannot be written: {reason(error)}") from None

    def _open(self, there: bool, blobs: Sequence[np.ndarray]) -> None:
        if there and self._datasets:  # it was closed at the end of a run, and the net runs again
            self._file = file = self._h5py.File(self._path, "r+")
            self._datasets = [file[name] for name in NAMES]
            return
        if there:
            os.unlink(self._path)
        self._file = file = self._h5py.File(self._path, "x")  # "x" follows no link
        self._datasets = [
            file.create_dataset(name, (0, *rows.shape[1:]), np.float32, maxshape=(None, *rows.shape[1:]))
            for name, rows in zip(NAMES, blobs, strict=True)
        ]
        file.attrs[_MARK] = "HDF5Output"
        file.flush()  # so that the next run knows the file, whatever ends this one

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
