"""Shapes of what data layers feed, for those who build a net without training it: `engine check` and `engine time`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from engine.data import open_data, shape_without_data
from engine.errors import ConfigError, EngineError
from engine.layers.base import Shape
from engine.report.table import shape_text

# Types of data layers whose shapes can be known, by the field that holds their batch_size.
BATCH_FIELDS = {"Data": "data_param", "ImageData": "image_data_param", "MemoryData": "memory_data_param"}
UNKNOWN = (3, 224, 224)


class SourceShapes:
    """For build(): from the source where it is, else from the layer's parameters, which `note` is told."""

    def __init__(self, phase: int, note: Callable[[str], None]):
        self._phase, self._note = phase, note

    def __call__(self, message: Any, where: str) -> list[Shape]:
        """Shapes of the tops, batch included. Raises ConfigError if nothing tells them."""
        if message.type not in BATCH_FIELDS:
            raise ConfigError(
                f"layer '{message.name}' ({message.type}): the shape of its data is known to its source only", where
            )
        batch = getattr(message, BATCH_FIELDS[message.type]).batch_size
        if batch <= 0:
            raise ConfigError(f"layer '{message.name}': expected a batch_size above 0, got {batch}", where)
        labels = [(batch,)] * (len(message.top) - 1)
        return [(batch, *self._image(message, where)), *labels]

    def _image(self, message: Any, where: str) -> tuple[int, int, int]:
        if message.type == "MemoryData":
            param = message.memory_data_param
            return param.channels, param.height, param.width
        if message.type == "ImageData":
            param = message.image_data_param
            crop = message.transform_param.crop_size
            return 3 if param.is_color else 1, crop or param.new_height, crop or param.new_width
        source = message.data_param.source
        if os.path.exists(source.replace("%#", "0").replace("%*", "1")):
            return self._of_source(message, where)
        try:
            shape, why = shape_without_data(message, where), "taking images of"
        except ConfigError:  # no crop, no resize, no mean file: only the source knows
            shape, why = UNKNOWN, "nothing else tells the size of its images, assuming"
        self._note(f"{where}: source {source} is not here; {why} {shape_text(shape)}")
        return shape

    def _of_source(self, message: Any, where: str) -> tuple[int, int, int]:
        try:
            return open_data(message, self._phase, 1, where).shapes[0]
        except ConfigError:
            raise
        except EngineError as error:  # so that it is found together with the other errors of the net
            raise ConfigError(str(error).removeprefix(f"{where}: "), where) from None
