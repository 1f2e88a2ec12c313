"""Cuts a blob into slices along an axis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.layers.base import Attributes, Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Slice")
class Slice(Layer):
    """Cuts a blob along `axis` (1), at each `slice_point` or, if none is given, into equal slices (Caffe's layer).
    Bottom: any shape; tops: the slices."""

    bf16 = True

    top_range = (1, None)

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.slice_param.axis, len(self.shapes[0]))

    @property
    def points(self) -> list[int]:
        """Where the tops begin along the axis. Raises ConfigError if the slices do not fit the bottom."""
        tops, size, given = len(self.message.top), self.shapes[0][self.axis], list(self.message.slice_param.slice_point)
        if not given:
            if size % tops:
                raise self.error(f"expected {tops} equal tops, but axis {self.axis} has size {size}; give slice_point")
            return [size // tops * i for i in range(tops)]
        if len(given) != tops - 1:
            raise self.error(f"expected {tops - 1} slice_point values for {tops} tops, got {len(given)}")
        points = [0, *given]
        if any(a >= b for a, b in zip(points, [*given, size])):
            raise self.error(f"expected rising slice_point values within (0, {size}), got {given}")
        return points

    def infer(self) -> list[Shape]:
        shape, axis, points = self.shapes[0], self.axis, self.points
        ends = [*points[1:], shape[axis]]
        return [(*shape[:axis], end - begin, *shape[axis + 1 :]) for begin, end in zip(points, ends)]

    def attributes(self) -> Attributes:
        return {"axis": self.axis}

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        block = re.search(r"(\d+)b$", x.layout)  # the channels of a block: 16 in aBcd16b
        if self.axis == 1 and block and any(point % int(block[1]) for point in self.points):
            x = builder.plain(self, x)
        builder.op("Slice", self, [x], self.attributes())

    def flops(self) -> int:
        return 0
