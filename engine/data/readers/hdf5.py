"""HDF5Data: Reads rows of datasets in HDF5 files, for each top those of the dataset that has its name."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from engine import proto
from engine.data.decode import ImageError
from engine.data.keyed_random import KeyedRandom
from engine.data.pair import MaskTransformer
from engine.data.reader import Reader, Request, Sample, Shape
from engine.data.registry import reader
from engine.data.transform import Transformer, forced_color
from engine.errors import ConfigError, DataError, shape_text
from engine.files import read_text, reason
from engine.host import _core
from engine.host.memory import free_memory
from engine.weights.h5_file import H5File, Rows, import_h5py

_log = logging.getLogger("engine")


@reader("HDF5Data")
class HDF5Reader(Reader):
    """Gives a row of each dataset, of any shape. The source is a list of .h5 files, one on each line.

    With a transform_param the first dataset must hold pictures (c, h, w). Other datasets with rows (1, h, w) or (h, w)
    of the same size are masks, which follow the pair rule; the rest are not changed.
    """

    field = "hdf5_data_param"

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        param = message.hdf5_data_param
        if not param.source:
            raise ConfigError("hdf5_data_param.source is missing", request.where)
        self.name = request.path(param.source)
        self._name = str(DataError("HDF5Data", request.where))  # as messages show it
        names = list(message.top)
        self._files = [self._open(path, names) for path in self._paths()]
        self._check_shapes(names)
        self._ends = list(accumulate(len(rows[0]) for _, rows in self._files))
        self.size = self._ends[-1]
        self.shuffle = param.shuffle
        if self.shuffle:
            self._warn_of_chunks()
        self.owners = request.owners(param.source)
        self._seed = request.seed
        rows = tuple(tuple(rows.shape[1:]) for rows in self._files[0][1])
        self._transformer = self._masks = None
        self.shapes = rows
        if message.HasField("transform_param"):
            self._transform(message.transform_param, request, rows)

    def _transform(self, param: proto.TransformationParameter, request: Request, rows: tuple[Shape, ...]) -> None:
        """Opens the transformers, finds the masks and sets `shapes`. rows: the shapes of the datasets' rows. Raises
        ConfigError, DataError."""
        if len(rows[0]) != 3:
            got = shape_text(rows[0])
            raise ConfigError(
                f"transform_param: expected rows of pictures, c x h x w, in the first dataset; got {got}", request.where
            )
        if forced_color(param, request.where):
            name = "force_color" if param.force_color else "force_gray"
            raise ConfigError(f"transform_param.{name}: rows of HDF5Data have the channels of the file", request.where)
        self._transformer = Transformer(param, request.phase, request.where)
        self._masks = MaskTransformer(param, request.phase, request.where)
        self._masked = [len(row) > 1 and row in (rows[0][1:], (1, *rows[0][1:])) for row in rows]
        if any(self._masked[1:]):
            self._masks.require()
        # The type that _fill() gives the pictures.
        kind = np.uint8 if all(first.dtype == np.uint8 for _, (first, *_) in self._files) else np.float32
        try:
            shape = self._transformer.shape(np.zeros((*rows[0][1:], rows[0][0]), kind))
        except ImageError as error:
            raise DataError(f"{self.name}: {error}", request.where) from None
        self.shapes = (
            shape,
            *(
                (*row[:-2], *shape[1:]) if masked else row
                for row, masked in zip(rows[1:], self._masked[1:], strict=True)
            ),
        )

    def _paths(self) -> list[str]:
        wanted = "a text file with the path of an HDF5 file on each line"
        lines = read_text(self.name, DataError, self._where, wanted).splitlines()
        paths = [line.strip() for line in lines if line.strip()]
        if not paths:
            raise DataError(f"the list {self.name} of HDF5 files is empty", self._where)
        return paths

    def _open(self, path: str, names: list[str]) -> tuple[str, list[Rows]]:
        """Opens the datasets of these names. Returns (path, for each name its rows: an array or a dataset). The file
        stays open only if one of them is a dataset. Raises DataError."""
        h5py = import_h5py("HDF5Data needs", DataError, self._where)
        file = H5File(h5py, path, lambda reason: DataError(f"{self.name}: cannot read {path}: {reason}", self._where))
        for name in names:
            if not file.has(name):
                raise DataError(f"{path} has no dataset '{name}'; it has {', '.join(file.names())}", self._where)
        rows = [file.rows(name, free_memory()) for name in names]
        if len({len(each) for each in rows}) > 1 or len(rows[0]) == 0:
            counts = ", ".join(f"{name} {len(each)}" for name, each in zip(names, rows, strict=True))
            raise DataError(f"{path}: expected as many rows in each dataset, above 0, got {counts}", self._where)
        for name, each in zip(names, rows, strict=True):
            if 0 in each.shape[1:]:
                shape = shape_text(each.shape[1:])
                raise DataError(f"{path}: rows of {shape} in '{name}', which hold no number", self._where)
        if all(isinstance(each, np.ndarray) for each in rows):
            file.close()
        return path, rows

    def _warn_of_chunks(self) -> None:
        """Warns if reading rows in random order will be slow."""
        slow = [path for path, rows in self._files if any(getattr(each, "chunks", None) for each in rows)]
        if slow:
            _log.warning(
                f"{self.name}: shuffle takes rows of {slow[0]}{f' and {len(slow) - 1} more' if slow[1:] else ''} "
                "in any order, which lie in chunks and do not fit into memory: for each a chunk is read and unpacked. "
                "Write the file without chunks and compression, as h5repack -l CONTI -f NONE does, or leave shuffle out"
            )

    def _check_shapes(self, names: list[str]) -> None:
        """Raises DataError if the rows of a dataset differ in shape from file to file."""
        first_path, first = self._files[0]
        for path, rows in self._files:
            for name, mine, other in zip(names, rows, first, strict=True):
                if mine.shape[1:] != other.shape[1:]:
                    raise DataError(
                        f"{path}: expected rows of {shape_text(other.shape[1:])} in '{name}', as in {first_path}, got "
                        f"{shape_text(mine.shape[1:])}",
                        self._where,
                    )

    def identity(self) -> str:
        counts = [len(rows[0]) for _, rows in self._files]
        return f"{self.size} rows, by file {', '.join(map(str, counts))}"

    @classmethod
    def transform_of(cls, message: proto.LayerParameter, where: str | None) -> proto.TransformationParameter:
        return message.transform_param

    def _fill(self, rows: Sequence[np.ndarray], random: KeyedRandom, out: Sequence[np.ndarray]) -> None:
        """Transforms the rows of one sample and writes them to out. Raises ImageError."""
        assert self._transformer is not None and self._masks is not None
        picture = rows[0].transpose(1, 2, 0)
        for values, masked, array in zip(rows[1:], self._masked[1:], out[1:], strict=True):
            if masked:
                mask = np.asarray(values).reshape(*picture.shape[:2], 1)
                classes = mask.astype(np.uint8)
                if not np.array_equal(classes, mask):
                    raise ImageError("expected a mask of whole numbers from 0 to 255")
                self._masks.apply(classes, picture, random.copy(), array.reshape(1, *array.shape[-2:]))
            else:
                array[...] = values
        self._transformer.apply(picture if picture.dtype == np.uint8 else picture.astype(np.float32), random, out[0])

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        number = bisect_right(self._ends, sample.index)
        path, rows = self._files[number]
        row = sample.index - (self._ends[number - 1] if number else 0)
        key = f"{path}[{row}]"
        _core.reading(self._name, key.encode())  # rows may lie in mapped files, which may be cut off
        try:
            if self._transformer is None:
                for values, array in zip(rows, out, strict=True):
                    array[...] = values[row]
            else:
                self._fill([values[row] for values in rows], KeyedRandom(self._seed, sample.epoch, sample.index), out)
        except Exception as error:  # h5py raises any type, which depends on what is damaged
            raise DataError(f"cannot read row {row} of {path}: {reason(error)}", self._where) from None
        finally:
            _core.done_reading()
        return key
