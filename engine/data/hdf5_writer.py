"""Writes the bottoms of HDF5Output layers to files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import proto
from engine.errors import ConfigError, DataError
from engine.weights.h5_file import Dataset, File, import_h5py

NAMES = ("data", "label")  # of the datasets, one for each bottom, as Caffe calls them


class HDF5Writer:
    """The file of one HDF5Output layer, made anew at the first batch; every later one is added to it."""

    def __init__(self, message: proto.LayerParameter, where: str | None, rank: int = 0, ranks: int = 1):
        """Raises ConfigError where several ranks would write one file, DataError without h5py."""
        name = message.hdf5_output_param.file_name
        if ranks > 1 and "%#" not in name:
            raise ConfigError(
                f"layer '{message.name}': {ranks} ranks would write one file; put %# (the rank) into file_name", where
            )
        self._path = name.replace("%#", str(rank)).replace("%*", str(ranks))
        self._where = where
        self._h5py = import_h5py("HDF5Output needs", DataError, where)
        self._file: File | None = None
        self._datasets: list[Dataset] = []  # one for each bottom

    def write(self, blobs: Sequence[np.ndarray]) -> None:
        """Adds the rows of a batch. Raises DataError."""
        try:
            if self._file is None:
                self._file = file = self._h5py.File(self._path, "w")
                self._datasets = [
                    file.create_dataset(name, (0, *rows.shape[1:]), np.float32, maxshape=(None, *rows.shape[1:]))
                    for name, rows in zip(NAMES, blobs, strict=True)
                ]
            for dataset, rows in zip(self._datasets, blobs, strict=True):
                dataset.resize(len(dataset) + len(rows), axis=0)
                dataset[-len(rows) :] = rows
        except (OSError, RuntimeError) as error:
            raise DataError(f"cannot write {self._path}: {str(error).splitlines()[0]}", self._where) from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
