"""MemoryData: Takes arrays that the program supplies (Feeder.set_arrays, the Python interface)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import proto
from engine.data.reader import Reader, Request, Sample, Shape
from engine.data.registry import reader
from engine.errors import ConfigError, DataError, shape_text


@reader("MemoryData")
class MemoryReader(Reader):
    """Gives two arrays: data (channels, height, width) and label (). There are no items until set() is called."""

    field = "memory_data_param"
    name = "memory"
    depth = 0  # the program may change its arrays between two batches

    def __init__(self, message: proto.LayerParameter, request: Request):
        super().__init__(message, request)
        self._name = message.name
        self.shapes = self.shapes_without_data(message, request.where)
        self.size = 0

    def set(self, data: np.ndarray, labels: np.ndarray, begin: int = 0) -> None:
        """Takes the arrays to read from. They are not copied, and transform_param does not change them.

        Args:
            data: (n, channels, height, width), of any numeric type.
            labels: (n,).
            begin: the number of the sample that is item 0.

        Raises DataError for arrays of other shapes.
        """
        data, labels = np.asarray(data), np.asarray(labels)
        expected = self.shapes[0]
        if data.ndim != 4 or data.shape[1:] != expected:
            raise DataError(
                f"layer '{self._name}': expected data of n x {shape_text(expected)}, got {shape_text(data.shape)}",
                self._where,
            )
        if len(data) == 0 or labels.size != len(data):
            raise DataError(
                f"layer '{self._name}': expected a label for each of {len(data)} items, above 0, got {labels.size}",
                self._where,
            )
        self._data, self._labels = data, labels.reshape(-1)
        self.size, self._begin = len(data), begin

    def identity(self) -> str:
        return ""  # the program gives each rank what it likes

    def load(self, sample: Sample, out: Sequence[np.ndarray]) -> str:
        index = (sample.index - self._begin) % self.size
        out[0][...] = self._data[index]
        out[1][...] = self._labels[index]
        return str(index)

    @classmethod
    def shapes_without_data(cls, message: proto.LayerParameter, where: str | None) -> tuple[Shape, ...]:
        param = message.memory_data_param
        shape = (param.channels, param.height, param.width)
        if 0 in shape:
            raise ConfigError(
                f"layer '{message.name}': expected channels, height and width above 0 in memory_data_param, got "
                f"{shape_text(shape)}",
                where,
            )
        return shape, ()

    @classmethod
    def source_of(cls, message: proto.LayerParameter) -> str:
        return ""
