"""Makes the views of a picture over which a net's answers are averaged: crops, and mirror images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine import proto
from engine.config import NetConfig
from engine.data.transform import crop_shape
from engine.errors import ConfigError, shape_text
from engine.inference.deploy import test_layers

if TYPE_CHECKING:
    from engine.data.prefetch import Batch
    from engine.graph.build import ShapesOf
    from engine.layers.base import Shape

_PICTURES = ("Data", "ImageData")


class Views:
    """Makes the views of a net's pictures.

    `config` is the net as it is to be built: with several crops its data layer does not crop, and of() does.
    """

    def __init__(self, config: NetConfig, crops: int = 1, flip: bool = False):
        """Raises ConfigError for a net that does not read pictures, or, with several crops, does not crop them.

        Args:
            crops: 1 (as the net says), 5 (the corners and the centre), or 10 (these and their mirror images).
            flip: whether each view is shown once more, mirrored.
        """
        self.config, self._mirrors = config, flip or crops == 10
        self._corners = crops > 1
        self._size = (0, 0)
        self.count = (5 if self._corners else 1) * (2 if self._mirrors else 1)
        if self.count == 1:
            return
        layer = next((layer for layer in test_layers(config) if layer.type in _PICTURES), None)
        if layer is None:
            raise ConfigError("no data layer gives pictures that could be cropped or mirrored", config.path)
        self._layer = layer.name
        if self._corners:
            self._size = crop_shape(layer.transform_param)
            if not self._size[0]:
                raise ConfigError(f"layer '{layer.name}': expected a crop_size, of which to take {crops}", config.path)
            self.config = _uncropped(config, layer.name)

    def describe(self) -> str:
        """Returns words that say what is averaged; "" if there is one view."""
        kinds = [*(["5 crops"] if self._corners else []), *(["mirrored pictures"] if self._mirrors else [])]
        return f"{self.count} views of each picture ({' and '.join(kinds)})" if kinds else ""

    def shapes_of(self, whole: ShapesOf) -> ShapesOf:
        """Returns the function that gives the shapes of the views, from `whole`, that of the data's shapes."""
        if not self._corners:
            return whole

        def shapes(message: proto.LayerParameter, where: str) -> list[Shape]:
            data, *others = whole(message, where)
            if message.name != self._layer:
                return [data, *others]
            if data[2] < self._size[0] or data[3] < self._size[1]:
                raise ConfigError(
                    f"layer '{message.name}': pictures of {shape_text(data[1:])} are smaller than the crop of "
                    f"{shape_text(self._size)}",
                    where,
                )
            return [(*data[:2], *self._size), *others]

        return shapes

    def of(self, batch: Batch) -> Iterator[Batch]:
        """Yields the batch as each view shows it."""
        if self.count == 1:
            yield batch
            return
        pictures, *others = batch.arrays[self._layer]
        for view in self._crops(pictures):
            for shown in (view, view[..., ::-1]) if self._mirrors else (view,):
                arrays = (np.ascontiguousarray(shown), *others)
                yield replace(batch, arrays={**batch.arrays, self._layer: arrays})

    def _crops(self, pictures: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the crops of pictures (n, c, h, w)."""
        if not self._corners:
            yield pictures
            return
        height, width = self._size
        down, right = pictures.shape[2] - height, pictures.shape[3] - width
        for top, left in ((0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)):
            yield pictures[:, :, top : top + height, left : left + width]


def _uncropped(config: NetConfig, name: str) -> NetConfig:
    net = proto.NetParameter()
    net.CopyFrom(config.message)
    for layer in net.layer:
        if layer.name == name:
            for field in ("crop_size", "crop_h", "crop_w"):
                layer.transform_param.ClearField(field)
    return config.with_message(net)
