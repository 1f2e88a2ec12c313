"""Crops the first bottom to the size of the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.layers.base import Layer, Shape
from engine.layers.registry import register

if TYPE_CHECKING:
    from engine.layers.builder import Builder


@register("Crop")
class Crop(Layer):
    """Cuts x to the size of a second blob along `axis` (2) and all that follow (Caffe's layer).

    Bottoms: x; a blob of as many axes, of which only the shape counts. Top: x's sizes before `axis`, the second blob's
    from there on. `offset` (0) says where the window begins, once for all these axes or once for each.
    """

    bottom_range = (2, 2)
    constant_bottoms = frozenset({1})
    bf16 = True
    shape_bottoms = frozenset({1})

    @property
    def axis(self) -> int:
        return self.canonical_axis(self.message.crop_param.axis, len(self.shapes[0]))

    @property
    def offsets(self) -> list[int]:
        """Where the window begins, along each axis of x."""
        given, cut = list(self.message.crop_param.offset), len(self.shapes[0]) - self.axis
        if len(given) not in (0, 1, cut):
            raise self.error(
                f"expected offset once, or once for each of the {cut} axes from {self.axis} on, got {given}"
            )
        return [0] * self.axis + (given if len(given) == cut else (given or [0]) * cut)

    def infer(self) -> list[Shape]:
        x, window = self.shapes
        if len(x) != len(window):
            raise self.error(f"expected two bottoms of as many axes, got {x} and {window}")
        top = (*x[: self.axis], *window[self.axis :])
        for axis, (offset, size, wanted) in enumerate(zip(self.offsets, x, top, strict=True)):
            if offset + wanted > size:
                raise self.error(f"expected a window within {x}, got {wanted} from {offset} on along axis {axis}")
        return [top]

    def lower(self, builder: Builder) -> None:
        x = builder.tensor(self.bottoms[0])
        if self.shapes[0][1:2] != self.tops[0].shape[1:2]:  # channels may lie in blocks, within which Crop cannot cut
            x = builder.plain(self, x)
        builder.op("Crop", self, [x], {"offsets": self.offsets})

    def flops(self) -> int:
        return 0
