"""HDF5Data: Rows of datasets in HDF5 files, one dataset for each top, by the top's name."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from engine.data.h5 import import_h5py
from engine.data.reader import Reader, Request, Sample
from engine.data.registry import reader
from engine.errors import ConfigError, DataError, shape_text


@reader("HDF5Data")
class HDF5Reader(Reader):
    """Arrays: a row of each dataset, of any shape. source: a list of .h5 files, one to a line."""

    field = "hdf5_data_param"

    def __init__(self, message: Any, request: Request):
        super().__init__(message, request)
        param = message.hdf5_data_param
        if message.HasField("transform_param"):
            raise ConfigError(f"layer '{message.name}': HDF5Data takes no transform_param", request.where)
        if not param.source:
            raise ConfigError("hdf5_data_param.source is missing", request.where)
        self._list = param.source.replace("%#", str(request.rank)).replace("%*", str(request.ranks))
        names = list(message.top)
        self._files = [self._open(path, names) for path in self._paths()]
        self._check_shapes(names)
        self._ends = list(accumulate(len(rows[0]) for _, rows in self._files))
        self.size = self._ends[-1]
        self.shuffle = param.shuffle
        self.own_items = "%#" in param.source
        self.shapes = tuple(tuple(rows.shape[1:]) for rows in self._files[0][1])

    def _paths(self) -> list[str]:
        try:
            lines = Path(self._list).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"cannot read the list {self._list} of HDF5 files: {reason}", self._where) from None
        paths = [line.strip() for line in lines if line.strip()]
        if not paths:
            raise DataError(f"the list {self._list} of HDF5 files is empty", self._where)
        return paths

    def _open(self, path: str, names: list[str]) -> tuple[str, list[Any]]:
        """(path, one array or dataset of rows for each name)."""
        h5py = import_h5py("HDF5Data", self._where)
        try:
            file = h5py.File(path, "r")
            rows = []
            for name in names:
                if name not in file:
                    raise DataError(f"{path} has no dataset '{name}'; it has {', '.join(file)}", self._where)
                rows.append(_rows(file[name], path))
        except (OSError, RuntimeError, ValueError) as error:  # ValueError: numbers that a truncated file does not have
            reason = os.strerror(error.errno) if getattr(error, "errno", None) else str(error).splitlines()[0]
            raise DataError(f"{self._list}: cannot read {path}: {reason}", self._where) from None
        if any(each.ndim == 0 or each.dtype.kind not in "fiub" for each in rows):
            raise DataError(f"{path}: expected datasets of numbers with at least one axis", self._where)
        if len({len(each) for each in rows}) > 1 or len(rows[0]) == 0:
            counts = ", ".join(f"{name} {len(each)}" for name, each in zip(names, rows, strict=True))
            raise DataError(f"{path}: expected as many rows in each dataset, above 0, got {counts}", self._where)
        return path, rows

    def _check_shapes(self, names: list[str]) -> None:
        first_path, first = self._files[0]
        for path, rows in self._files:
            for name, mine, other in zip(names, rows, first, strict=True):
                if mine.shape[1:] != other.shape[1:]:
                    raise DataError(
                        f"{path}: expected rows of {shape_text(other.shape[1:])} in '{name}', as in {first_path}, got "
                        f"{shape_text(mine.shape[1:])}",
                        self._where,
                    )

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        number = bisect_right(self._ends, sample.index)
        path, rows = self._files[number]
        row = sample.index - (self._ends[number - 1] if number else 0)
        try:
            for values, array in zip(rows, out, strict=True):
                array[...] = values[row]
        except (OSError, RuntimeError) as error:
            raise DataError(f"cannot read row {row} of {path}: {error}", self._where) from None
        return f"{path}[{row}]"


def _rows(dataset: Any, path: str) -> Any:
    """The dataset, mapped into memory where it lies in the file in one piece: h5py reads for one thread at a time."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.size == 0 or dataset.file.userblock_size:
        return dataset
    return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
