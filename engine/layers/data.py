"""The layer that stands for a data source. It knows the shapes of its tops, and nothing about where data come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register(
    *("Data", "ImageData", "HDF5Data", "MemoryData", "WindowData", "AnnotatedData"),
    *("ImageSegData", "DenseImageData", "SegData", "ImageLabelmapData", "VideoData", "MultiLabelImageData"),
)
class Data(Layer):
    """Tops: data (N, C, H, W) and, if asked for, labels; those of HDF5Data may be any. Whoever opens the source sets
    `source_shapes`, with the batch as first axis, before `infer`."""

    bottom_range = (0, 0)
    top_range = (1, None)
    source_shapes: list[Shape] = []

    def infer(self) -> list[Shape]:
        count = len(self.message.top)
        if len(self.source_shapes) < count:
            raise self.error(f"expected at most {len(self.source_shapes)} tops, what its source gives, got {count}")
        return self.source_shapes[:count]

    def lower(self, builder: Builder) -> None:
        for top in self.tops:
            builder.input(top)

    def flops(self) -> int:
        return 0
