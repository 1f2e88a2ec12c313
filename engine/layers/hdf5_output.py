"""Ends the graph with blobs that whoever runs the net writes to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("HDF5Output")
class HDF5Output(Layer):
    """Adds the rows of its bottoms to the file `file_name`, at every forward (Caffe's layer). Bottoms: data and label,
    of as many rows each. No gradient flows into them."""

    bottom_range = (2, 2)
    top_range = (0, 0)
    is_sink = True

    def infer(self) -> list[Shape]:
        if not self.message.hdf5_output_param.file_name:
            raise self.error("hdf5_output_param.file_name is missing")
        data, label = self.shapes
        if not data or not label or data[0] != label[0]:
            raise self.error(f"expected bottoms of as many rows each, got {data} and {label}")
        return []

    def lower(self, builder: Builder) -> None:
        """Adds no ops: whoever runs the net reads the bottoms."""

    def flops(self) -> int:
        return 0
